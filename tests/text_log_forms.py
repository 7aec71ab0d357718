"""Lines in the forms in which tools write text logs, and the events that they become."""

from __future__ import annotations

import math
from typing import TypeAlias

#: Kind, step and metrics of an event.
Told: TypeAlias = tuple[str, int, dict[str, float]]

NANOGPT = """\
step 0: train loss 10.9886, val loss 10.9898
iter 0: loss 10.9872, time 2ms, mfu -100.00%
step 250: train loss 6.1040, val loss 6.1234
iter 250: loss 6.2030, time 2ms, mfu 1.21%
"""
TORCHTITAN = """\
[rank0]:[titan] 2025-10-30 14:32:58,897 - root - INFO - step:  1  loss:  8.1661  grad_norm:  3.6855  memory:  2.47GiB(3.12%)  tps: 3,502
[rank1]:[titan] 2025-10-30 14:32:58,898 - root - INFO - step:  1  loss:  8.1661  grad_norm:  3.6855  tps: 3,503
[rank0]:[titan] 2025-10-30 14:32:58,990 - root - INFO - \x1b[31mstep:  2  \x1b[32mloss:  6.1098  \x1b[34mmemory:  2.49GiB(3.14%)\x1b[39m
[rank0]:[titan] 2025-10-30 14:32:59,090 - root - INFO - validate step:  2  loss:  6.2098  memory:  2.49GiB(3.14%)  tps: 9,138
"""  # noqa: E501
DEEPSPEED = """\
***** Evaluating perplexity, Epoch 0/16 *****
ppl: 4998.5
Beginning of Epoch 1/16, Total Micro Batches 920
steps: 10 loss: 8.9300 iter time (s): 1.234 samples/sec: 3.241
[2023-12-29 13:02:49,647] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.0003, 0.0003], mom=[(0.9, 0.999)]
[2023-12-29 13:02:49,654] [INFO] [timer.py:260:stop] epoch=0/micro_step=20/global_step=20, CurrSamplesPerSec=11.5, MemAllocated=1.87GB
Epoch 1/16 with loss 8.5
"""  # noqa: E501
MEGATRON = """\
 iteration        1/    5000 | consumed samples:           96 | elapsed time per iteration (ms): 18706.1 | learning rate: 6.000E-05 | lm loss: 6.444662E+00 | number of nan iterations:   0 |
-------------------------------------------------------------------------------------
 validation loss at iteration 1 | lm loss value: 7.174200E+00 | lm loss PPL: 1.305315E+03 |
 validation loss at iteration 1 on test set | lm loss value: 7.500000E+00 |
 [2026-04-28 00:00:03] iteration        2/    5000 | lm loss: 5.0E+00 |
"""  # noqa: E501
NEMO = """\
Training epoch 0, iteration 0/99 | lr: 5e-09 | global_batch_size: 512 | global_step: 0 | reduced_train_loss: 11.04
Training epoch 0, iteration 1/99 | lr: 1e-08 | global_batch_size: 512 | global_step: 1 | reduced_train_loss: 11.02
"""
FAIRSEQ = """\
2025-10-15 11:33:32 | INFO | train_inner | epoch 001:    100 / 487 loss=4.655, ppl=25.2, num_updates=100, lr=0.01
2025-10-15 11:33:44 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 2.001 | ppl 4 | num_updates 487
2025-10-15 11:33:44 | INFO | train | epoch 001 | loss 3.001 | num_updates 487 | lr 0.1
"""
FAIRSEQ_JSON = """\
2021-03-08 12:31:36 | INFO | train_inner | {"epoch": 1, "update": 0.012, "loss": "16.475", "num_updates": "100"}
2021-03-08 12:32:33 | INFO | valid | {"epoch": 1, "valid_loss": "15.5", "valid_num_updates": "487"}
[2020-12-19 17:41:25,566][train][INFO] - {"epoch": 1, "train_loss": "16.0", "train_num_updates": "487"}
"""
MMDET = """\
2022-11-12 14:30:37,044 - mmdet - INFO - Epoch [1][50/962]\tlr: 1.978e-03, eta: 2:03:32, s0.acc: 88.1094, loss: 1.0950
2022-11-12 14:31:08,047 - mmdet - INFO - Epoch [1][950/962]\tlr: 3.976e-03, eta: 2:00:37, s0.acc: 92.6504, loss: 0.6972
2022-11-12 14:41:28,652 - mmdet - INFO - Epoch(val) [1][200]\tbbox_mAP: 0.0310, bbox_mAP_l: -1.0000
2022-11-12 14:42:05,631 - mmdet - INFO - Epoch [2][50/962]\tlr: 2.000e-02, eta: 1:57:11, s0.acc: 93.0684, loss: 0.6170
"""
MMENGINE = """\
11/08 15:58:16 - mmengine - INFO - Epoch(train)  [1][ 50/100]  lr: 7.9e-05  eta: 2 days, 7:32:05  grad_norm: nan  loss: 859.5
11/08 15:58:26 - mmengine - INFO - Epoch(val)  [1][ 50/196]    eta: 0:01:00  time: 0.3  memory: 500
11/08 15:58:36 - mmengine - INFO - Epoch(val)  [1][196/196]  accuracy/top1: 0.3570  AP .5: 0.5  time: 0.2
11/08 15:58:46 - mmengine - INFO - Epoch(train)  [2][ 50/100]  lr: 7.9e-05  eta: 1 day, 7:32:05  loss: 800.5
"""  # noqa: E501
EPOCHS = """\
Epoch 3/10 | Train Loss: 0.5 | Val Loss: 0.6
Epoch: 4/10 - Train Loss: 0.4 - Val Loss: 0.5
"""
EPOCHS_OF_BATCHES = """\
Epoch [1/3], Step [100/600], Loss: 0.9
Epoch [1/3], Step [600/600], Loss: 0.8
Epoch [2/3], Step [100/600], Loss: 0.7
"""
MNIST = """\
Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.300000
Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.200000

Test set: Average loss: 0.0500, Accuracy: 9834/10000 (98%)

Train Epoch: 2 [640/60000 (1%)]\tLoss: 1.200000
"""
IMAGENET = """\
Epoch: [0][   1/5005]\tTime  5.123 ( 5.123)\tLoss 6.9e+00 (6.9e+00)\tAcc@1   0.39 (  0.39)
Epoch: [0][  11/5005]\tTime  0.123 ( 1.123)\tLoss 6.8e+00 (6.9e+00)\tAcc@1   0.78 (  0.39)
Test: [  1/196]\tTime  0.1 ( 0.1)\tLoss 6.7e+00 (6.7e+00)\tAcc@1   0.39 (  0.39)
 *   Acc@1 10.758 Acc@5 20.078
Epoch: [1][   1/5005]\tTime  5.123 ( 5.123)\tLoss 6.5e+00 (6.5e+00)\tAcc@1   9.39 (  9.39)
"""
TUTORIAL = """\
Epoch 0/24
----------
train Loss: 0.6 Acc: 0.7
val Loss: 0.3 Acc: 0.9

Epoch 1/24
----------
train Loss: 0.5 Acc: 0.8
val Loss: 0.2 Acc: 0.95

Best val Acc: 0.95
"""
QUICKSTART = """\
Epoch 1
-------------------------------
loss: 2.303494  [   64/60000]
loss: 2.294637  [ 6464/60000]
Test Error:\x20
 Accuracy: 50.9%, Avg loss: 2.150225\x20

Epoch 2
-------------------------------
loss: 2.158000  [   64/60000]
"""
KERAS_BAR = """\
Epoch 1/2
   1/1563 [..............................] - ETA: 9:23 - loss: 2.9 - acc: 0.0
 100/1563 [>.............................] - ETA: 1:23 - loss: 2.3 - acc: 0.1
1563/1563 [==============================] - 60s 38ms/step - loss: 1.5 - acc: 0.4
1563/1563 [==============================] - 67s 43ms/step - loss: 1.5 - acc: 0.4 - val_loss: 1.2 - val_acc: 0.5
Epoch 2/2
\x1b[1m1563/1563\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m6s\x1b[0m 4ms/step - acc: 0.5 - loss: 1.1 - val_loss: 1.0
1563/1563 [==============================] - 9s 6ms/step - loss: 0.7 - acc: 0.8
313/313 [==============================] - 1s 2ms/step - loss: 0.7 - acc: 0.8
"""  # noqa: E501
KERAS_LINES = """\
Epoch 1/15
67s - loss: 0.9 - acc: 0.5 - val_loss: 0.95
Epoch 2/15
1563/1563 - 67s - loss: 0.8 - acc: 0.6 - val_loss: 0.9 - 67s/epoch - 43ms/step
"""
DIFFUSERS = """\
Steps:  50%|█████     | 100/200 [03:55<00:00,  1.18s/it, lr=5e-5, step_loss=1.05]
Steps: 100%|██████████| 200/200 [07:55<00:00,  1.18s/it, lr=5e-5, step_loss=1.01]
"""
LIGHTNING_BAR = """\
Epoch 0:  50%|█████     | 50/100 [00:10<00:10,  5.00it/s, train_loss=0.700]
Epoch 0: 100%|██████████| 100/100 [00:10<00:00,  9.90it/s, train_loss=0.500]\r\
Epoch 0: 100%|██████████| 100/100 [00:11<00:00,  9.00it/s, train_loss=0.500, val_loss=0.600]
Epoch 1: 100%|██████████| 100/100 [00:11<00:00,  9.00it/s, train_loss=0.400, val_loss=0.500]
"""
TRAINER = """\
{'loss': 2.075, 'learning_rate': 0.0002, 'epoch': 0.5}
 50%|█████     | 10/20 [00:01<00:01,  9.5it/s]
{'loss': '1.2', 'grad_norm': 'nan', 'epoch': '1'}
{'eval_loss': 1.1, 'epoch': 1.0}
{'train_runtime': 60.0, 'train_loss': 1.5, 'epoch': 1.0}
"""
LIGHTGBM = """\
[LightGBM] [Info] Start training from score 0.5
[10]\ttraining's binary_logloss: 0.6\tvalid's binary_logloss: 0.63
[20]\ttraining's binary_logloss: 0.5\tvalid's binary_logloss: 0.53
"""
OPENNMT = """\
[2020-01-01 00:00:00,000 INFO] Step 50/1000; acc:   5.0; ppl: 9000.1; xent: 9.1; lr: 0.1; 100/200 tok/s;  5 sec
[2020-01-01 00:00:10,000 INFO] Validation perplexity: 100.5
[2020-01-01 00:00:10,000 INFO] Validation accuracy: 6.5
[2020-01-01 00:00:20,000 INFO] Step 100/1000; acc:   6.0; ppl: 8000.1; xent: 9.0; lr: 0.2; 100/200 tok/s;  9 sec
"""
XGBOOST = "[0]\ttrain-rmse:0.53\teval-rmse:0.55\n[1]\ttrain-rmse:0.43\teval-rmse:0.45\n"

CAFFE = """\
I0101 12:00:00.100000  1234 solver.cpp:330] Iteration 0, Testing net (#0)
I0101 12:00:01.100000  1234 solver.cpp:397]     Test net output #0: accuracy = 0.1012
I0101 12:00:01.100000  1234 solver.cpp:397]     Test net output #1: loss = 2.36 (* 1 = 2.36 loss)
I0101 12:00:01.200000  1234 solver.cpp:218] Iteration 0 (0 iter/s, 0.1s/100 iters), loss = 2.35
I0101 12:00:01.200000  1234 solver.cpp:237]     Train net output #0: loss = 2.35 (* 1 = 2.35 loss)
I0101 12:00:01.200000  1234 sgd_solver.cpp:105] Iteration 0, lr = 0.01
I0101 12:00:09.200000  1234 solver.cpp:218] Iteration 100 (12 iter/s, 8s/100 iters), loss = 0.21
I0101 12:00:19.100000  1234 solver.cpp:330] Iteration 500, Testing net (#0)
I0101 12:00:20.100000  1234 solver.cpp:397]     Test net output #0: accuracy = 0.9712
"""

STEPS = "step 50 loss 0.75\nstep 100 loss 0.5\n"
FLAIR = """\
2024-01-02 10:00:00,493 epoch 1 - iter 50/100 - loss 0.75 - samples/sec: 8.00 - lr: 0.000005
2024-01-02 10:03:00,203 epoch 1 - iter 100/100 - loss 0.5 - samples/sec: 8.00 - lr: 0.000005
2024-01-02 10:04:00,500 EPOCH 1 done: loss 0.625 - lr 0.000005
2024-01-02 10:05:00,019 DEV : loss 0.25 - score 0.875
2024-01-02 10:08:00,271 epoch 2 - iter 50/100 - loss 0.375 - samples/sec: 8.00 - lr: 0.000004
"""
CYCLEGAN = """\
(epoch: 1, iters: 100, time: 0.2, data: 0.25) D_A: 0.25 G_A: 0.5
(epoch: 1, iters: 200, time: 0.2, data: 0.01) D_A: 0.5 G_A: 0.25
(epoch: 2, iters: 100, time: 0.2, data: 0.25) D_A: 0.125 G_A: 0.5
"""
OLMO = """\
2025-01-02 10:00:01.009\thost:0\tolmo.train:979\tINFO\t[step=1/15000,epoch=0]
    optim/total_grad_norm=0.25
    train/CrossEntropyLoss=3.0
    throughput/total_tokens=2,097,152
2025-01-02 10:00:02.009\thost:0\tolmo.train:979\tINFO\t[step=2/15000,epoch=0]
    optim/total_grad_norm=0.5
    train/CrossEntropyLoss=2.75
    throughput/total_tokens=4,194,304
2025-01-02 10:00:03.009\thost:0\tolmo.train:979\tINFO\tPeak memory: 12
"""
COQUI = """\
 > EPOCH: 0/1000
 --> /data/out

   --> STEP: 20/30 -- GLOBAL_STEP: 500020
     | > loss_disc: 3.50000  (3.75000)
     | > grad_norm_0: 0.50000  (2.50000)
     | > current_lr_0: 0.00020\x20

 > EVALUATION\x20

  --> EVAL PERFORMANCE
     | > avg_loader_time: 10.00000 (+0.00000)
     | > avg_loss_disc: 3.25000 (+0.00000)

 > EPOCH: 1/1000
   --> STEP: 10/30 -- GLOBAL_STEP: 500040
     | > loss_disc: 3.00000  (3.12500)
"""
TESSERACT = """\
2 Percent improvement time=100, best error was 100 @ 0
At iteration 100/120/130, Mean rms=5.5%, char train=99.25%, skip=0%,  New best char error = 99.25 wrote checkpoint.

At iteration 200/240/260, Mean rms=5.25%, char train=99.5%, skip=0%,  wrote checkpoint.
"""

CIFAR = """\
[1,  2000] loss: 2.25
[1,  4000] loss: 1.875
[2,  2000] loss: 1.75
Finished Training
"""
CATBOOST = """\
0:\tlearn: 0.6931\ttest: 0.6935\tbest: 0.6935 (0)\ttotal: 50ms\tremaining: 49.9s
1:\tlearn: 0.5\ttest: 0.625\tbest: 0.625 (1)\ttotal: 1.5s\tremaining: 12m 3s
2:\tlearn: 0.25\ttest: 0.75\tbest: 0.625 (1)\ttotal: 2s\tremaining: 10m

bestTest = 0.625
bestIteration = 1
Shrink model to first 2 iterations.
"""
KOHYA = """\
  num epochs / epoch数: 2
steps:   0%|          | 0/4 [00:00<?, ?it/s]
epoch 1/2
steps:  25%|██▌       | 1/4 [00:01<00:03,  1.02s/it, avr_loss=0.5]
steps:  50%|█████     | 2/4 [00:02<00:02,  1.02s/it, avr_loss=0.25]
epoch 2/2
steps:  75%|███████▌  | 3/4 [00:03<00:01,  1.02s/it, avr_loss=0.125]
steps: 100%|██████████| 4/4 [00:04<00:00,  1.02s/it, avr_loss=0.1]
"""
ESTIMATOR = """\
INFO:tensorflow:Create CheckpointSaverHook.
INFO:tensorflow:loss = 2.5, step = 0
INFO:tensorflow:global_step/sec: 80.1
INFO:tensorflow:loss = 1.25, step = 100 (1.234 sec)
INFO:tensorflow:Saving checkpoints for 200 into /tmp/model.ckpt.
INFO:tensorflow:Loss for final step: 0.75.
INFO:tensorflow:Saving dict for global step 200: accuracy = 0.875, average_loss = 0.25, global_step = 200, loss = 32.0
"""

SPACY = """\
============================= Training pipeline =============================
E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  SCORE\x20
---  ------  ------------  --------  ------  ------
  0       0         47.25     49.50    0.25    0.00
  0     200       1070.50   2480.00   57.50    0.57
  1     400        121.00   1840.25   70.00    0.70
"""
SKORCH = """\
  epoch    train_loss    valid_acc    valid_loss     dur
-------  ------------  -----------  ------------  ------
      1        \x1b[36m0.6875\x1b[0m       \x1b[32m0.5000\x1b[0m        \x1b[35m0.6750\x1b[0m  0.0541
      2        \x1b[36m0.5000\x1b[0m       0.4500        0.7500  0.0500
"""

MAXTEXT = """\
completed step: 0, seconds: 20.125, TFLOP/s/device: 1.5, Tokens/s/device: 25.5, total_weights: 8192, loss: 10.875
completed step: 1, seconds: 0.125, TFLOP/s/device: 50.5, Tokens/s/device: 900.5, total_weights: 8192, loss: 10.5
"""

UNITY = """\
[INFO] Listening on port 5004. Start training by pressing the Play button in the Unity Editor.
\tmax_steps:\t500000
[INFO] 3DBall. Step: 12000. Time Elapsed: 23.5 s. Mean Reward: 1.125. Std of Reward: 0.75. Training.
[INFO] 3DBall. Step: 24000. Time Elapsed: 46.5 s. No episode was completed since last summary. Training.
[INFO] 3DBall. Step: 36000. Time Elapsed: 70.5 s. Mean Reward: -1.5. Mean Group Reward: 0.25. Training. ELO: 1200.5.
"""
OLD_UNITY = """\
INFO:mlagents.trainers: firstRun-0: BallBrain: Step: 1000. Time Elapsed: 46.5 s Mean Reward: 1.25. Std of Reward: 0.75. Training.
INFO:mlagents.trainers: firstRun-0: BallBrain: Step: 2000. Mean Reward: 2. Std of Reward: 0.5. Not Training.
"""  # noqa: E501
STYLEGAN = """\
Training for 25000 kimg...

tick 0     kimg 0.0      time 35s          sec/tick 4.25    sec/kimg 1079.75 maintenance 30.5   cpumem 3.75   augment 0.000
Evaluating metrics...
{"results": {"fid50k_full": 380.5}, "metric": "fid50k_full", "total_time": 100.5, "snapshot_pkl": "network-snapshot-000000.pkl"}
tick 1     kimg 4.0      time 1h 08m 06s   sec/tick 450.5   sec/kimg 112.5   maintenance 0.5    cpumem 3.75   augment 0.125
"""  # noqa: E501
OLD_STYLEGAN = """\
tick 1     kimg 8.5      lod 0.00  minibatch 32   time 1m 23s       sec/tick 60.5    sec/kimg 7.5   maintenance 20.5   gpumem 4.5
network-snapshot-000008        time 10m 36s      fid50k 300.125
tick 2     kimg 16.5     lod 0.00  minibatch 32   time 2m 23s       sec/tick 60.5    sec/kimg 7.5   maintenance 20.5   gpumem 4.5
"""  # noqa: E501
DEEPMD = """\
#  step      rmse_val    rmse_trn    rmse_e_val  rmse_e_trn         lr
# If there is no available reference data, rmse_*_{val,trn} will print nan
      0      3.25e+01    3.50e+01      1.00e+01    1.25e+01    1.0e-03
    100      2.50e+01    2.75e+01      1.25e+00         nan    1.0e-03
"""
CHAINER = """\
epoch       iteration   main/loss   validation/main/loss  main/accuracy
\x1b[J1           10          6.25        3.5                   0.375
     total [#####.............................................] 10.00%
this epoch [##................................................] 20.00%
1           20          3.5                               0.5
2           30          1.75        2.25                  0.625
"""
FASTAI = """\
epoch     train_loss  valid_loss  accuracy  time
0         0.500000    0.375000    0.850000  00:10
1         0.250000    0.250000    0.875000  00:09
"""
NUMPY = "# step loss acc\n1 0.5 0.25\n2 0.25 0.75\n"

TIMM = """\
Train: 0 [   0/1251 (  0%)]  Loss:  6.75 (6.75)  Time: 3.500s,   36.50/s  (3.500s,   36.50/s)  LR: 1.000e-06  Data: 1.5 (1.5)
Train: 0 [  50/1251 (  4%)]  Loss:  6.50 (6.62)  Time: 0.500s,  256.50/s  (0.600s,  200.50/s)  LR: 1.000e-06  Data: 0.5 (0.5)
Test: [   0/48]  Loss:  6.9000 (6.9000)  Acc@1:  0.2500 ( 0.2500)
Test: [  48/48]  Loss:  6.2500 (6.2500)  Acc@1:  0.5000 ( 0.5000)
Train: 1 [   0/1251 (  0%)]  Loss:  6.25 (6.25)  Time: 3.500s,   36.50/s  (3.500s,   36.50/s)  LR: 1.000e-05  Data: 1.5 (1.5)
"""  # noqa: E501
SWIN = """\
[2024-01-02 10:00:00 swin_tiny] (main.py 250): INFO Train: [0/300][0/1251]\teta 1:00:00 lr 0.000001\tloss 6.75 (6.75)\tgrad_norm 1.5 (1.5)\tmem 5000MB
[2024-01-02 10:00:00 swin_tiny] (main.py 250): INFO Train: [0/300][10/1251]\teta 1:00:00 lr 0.000001\tloss 6.5 (6.62)\tgrad_norm 1.25 (1.5)\tmem 5000MB
[2024-01-02 10:00:00 swin_tiny] (main.py 280): INFO  * Acc@1 10.500 Acc@5 20.500
[2024-01-02 10:00:00 swin_tiny] (main.py 250): INFO Train: [1/300][0/1251]\teta 1:00:00 lr 0.000001\tloss 6.25 (6.25)\tgrad_norm 1.5 (1.5)\tmem 5000MB
"""  # noqa: E501
OPEN_CLIP = """\
Train Epoch: 0 [   512/100000 (1%)] Data (t): 0.500 Batch (t): 1.500, 300.5/s LR: 0.000001 Logit Scale: 14.25 Loss: 5.5000 (5.5000)
Train Epoch: 0 [ 51712/100000 (52%)] Data (t): 0.500 Batch (t): 1.500, 300.5/s LR: 0.000002 Logit Scale: 14.25 Loss: 5.2500 (5.3750)
Eval Epoch: 1 imagenet-zeroshot-val-top1: 0.2500\timagenet-zeroshot-val-top5: 0.5000
"""  # noqa: E501
MXNET = """\
INFO:root:Epoch[0] Batch [0-20]\tSpeed: 1522.50 samples/sec\taccuracy=0.125000
INFO:root:Epoch[0] Batch [20-40]\tSpeed: 1522.50 samples/sec\taccuracy=0.250000
INFO:root:Epoch[0] Train-accuracy=0.187500
INFO:root:Epoch[0] Validation-accuracy=0.500000
INFO:root:Epoch[1] Batch [0-20]\tSpeed: 1522.50 samples/sec\taccuracy=0.375000
"""
COMPOSER = """\
[epoch=1][batch=1/10]:
\t Train time/epoch: 0
\t Train loss/train/total: 5.5000
[epoch=1][batch=2/10]:
\t Train time/epoch: 0
\t Train loss/train/total: 5.2500
[Eval batch=10/10] Eval on eval data:
\t Eval metrics/eval/CrossEntropy: 5.7500
"""
RSL_RL = """\
################################################################################
                       \x1b[1m Learning iteration 0/1500 \x1b[0m

                       Computation: 50000 steps/s (collection: 1.200s, learning 0.300s)
          Mean value_function loss: 0.0625
                       Mean reward: 1.25
--------------------------------------------------------------------------------
                   Total timesteps: 98304
                    Iteration time: 1.50s
                               ETA: 2250.0s

################################################################################
                       \x1b[1m Learning iteration 1/1500 \x1b[0m

                       Computation: 50000 steps/s (collection: 1.200s, learning 0.300s)
          Mean value_function loss: 0.0312
                       Mean reward: 2.25
--------------------------------------------------------------------------------
                   Total timesteps: 196608
                    Iteration time: 1.50s
                               ETA: 2250.0s
"""
SB3 = """\
Using cpu device
---------------------------------
| rollout/           |          |
|    ep_rew_mean     | 22.5     |
| time/              |          |
|    time_elapsed    | 2        |
|    total_timesteps | 2048     |
---------------------------------
Eval num_timesteps=4096, episode_reward=30.50 +/- 1.50
---------------------------------
| eval/              |          |
|    mean_reward     | 30.5     |
| time/              |          |
|    total_timesteps | 4096     |
---------------------------------
-----------------------------------------
| rollout/                |             |
|    ep_rew_mean          | 25.5        |
| time/                   |             |
|    total_timesteps      | 4096        |
| train/                  |             |
|    loss                 | 5.25        |
-----------------------------------------
"""
SPINUP = "".join(
    f"""\
---------------------------------------
|             Epoch |               {epoch} |
|      AverageEpRet |            {reward} |
| TotalEnvInteracts |           4e+03 |
---------------------------------------
"""
    for epoch, reward in ((0, 22.5), (1, 32.5))
)
ICEFALL = """\
2024-01-02 10:00:00,500 INFO [train.py:850] Epoch 1, batch 50, loss[loss=0.25, over 1000.00 frames.], batch size: 20, lr: 3.00e-03
2024-01-02 10:00:00,500 INFO [train.py:870] Epoch 1, validation: loss=0.75, simple_loss=0.5, over 944034.00 frames.
2024-01-02 10:00:00,500 INFO [train.py:850] Epoch 2, batch 50, loss[loss=0.125, over 1000.00 frames.], batch size: 20, lr: 3.00e-03
"""  # noqa: E501
OBJECT_DETECTION = """\
INFO:tensorflow:Step 100 per-step time 0.500s
INFO:tensorflow:{'Loss/classification_loss': 0.5,
 'Loss/total_loss': 0.75,
 'learning_rate': 0.04}
INFO:tensorflow:Step 200 per-step time 0.500s
INFO:tensorflow:{'Loss/classification_loss': 0.25,
 'Loss/total_loss': 0.375,
 'learning_rate': 0.04}
"""
MODEL_GARDEN = """\
train | step:    100 | steps/sec:   10.5 | output: {'training_loss': 0.5, 'learning_rate': 0.25}
train | step:    200 | steps/sec:   10.5 | output: {'training_loss': 0.25, 'learning_rate': 0.25}
 eval | step:    200 | eval time:    5.5 sec | output: {'validation_loss': 0.75, 'accuracy': 0.5}
"""
MARIAN = """\
[2024-01-02 10:00:00] Ep. 1 : Up. 500 : Sen. 32,000 : Cost 7.25 : Time 35.5s : 9000.5 words/s
[2024-01-02 10:00:00] Ep. 1 : Up. 1000 : Sen. 64,000 : Cost 6.25 : Time 35.5s : 9000.5 words/s
[2024-01-02 10:00:00] [valid] Ep. 1 : Up. 1000 : cross-entropy : 45.5 : new best
"""
TORCHTUNE = """\
1|1|Loss: 1.5000:   2%|2         | 1/50 [00:01<00:50,  1.00s/it]
1|2|Loss: 1.2500:   4%|4         | 2/50 [00:02<00:49,  1.00s/it]
"""
DARKNET = """\
 1: 1250.5, 1250.5 avg loss, 0.25 rate, 3.2 seconds, 64 images, -1 hours left
 2: 1200.5, 1245.5 avg loss, 0.25 rate, 3.2 seconds, 128 images, 10.5 hours left
"""
SKLEARN = """\
      Iter       Train Loss   Remaining Time
         1           1.2500            3.50s
         2           1.1250            3.25m
"""
GLUONTS = """\
Epoch[0] Learning rate is 0.25
Epoch[0] Evaluation metric 'epoch_loss'=5.500000
Epoch[1] Learning rate is 0.25
Epoch[1] Evaluation metric 'epoch_loss'=5.250000
"""

SWAV = """\
INFO - 01/02/24 10:00:00 - 0:00:01 - Epoch: [0][0]\tTime 2.500 (2.500)\tData 1.500 (1.500)\tLoss 2.5000 (2.5000)\tLr: 0.0000
INFO - 01/02/24 10:00:00 - 0:00:31 - Epoch: [0][50]\tTime 0.500 (0.750)\tData 0.000 (0.031)\tLoss 2.2500 (2.5000)\tLr: 0.0625
INFO - 01/02/24 10:00:00 - 0:01:01 - ============ Starting epoch 1 ... ============
INFO - 01/02/24 10:00:00 - 0:01:03 - Epoch: [1][0]\tTime 2.500 (2.500)\tData 1.500 (1.500)\tLoss 2.2500 (2.2500)\tLr: 0.1250
INFO - 01/02/24 10:00:00 - 0:01:33 - Epoch: [1][50]\tTime 0.500 (0.750)\tData 0.000 (0.031)\tLoss 2.0000 (2.1250)\tLr: 0.2500
"""  # noqa: E501
PADDLE = """\
Epoch 1/2
step 10/20 - loss: 0.5000 - acc: 0.2500 - 3s/step
step 20/20 - loss: 0.2500 - acc: 0.5000 - 3s/step
save checkpoint at /data/save/0
Eval begin...
step 5/10 - loss: 0.7500 - acc: 0.1250 - 3s/step
step 10/10 - loss: 0.6250 - acc: 0.3750 - 3s/step
Eval samples: 11219
Epoch 2/2
step 10/20 - loss: 0.1250 - acc: 0.7500 - 3s/step
"""
PADDLE_VIDEO = """\
[12/25 14:22:26]     batch_size : 64
epoch:[  1/25 ] train step:0    loss: 5.00000 lr: 0.250000 top1: 0.12500
epoch:[  1/25 ] train step:100  loss: 3.50000 lr: 0.250000 top1: 0.25000
END epoch:1   train loss_avg: 4.00000  top1_avg: 0.18750
epoch:[  1/25 ] val step:0    loss: 3.25000 top1: 0.12500
END epoch:1   val loss_avg: 3.75000 top1_avg: 0.37500
epoch:[  2/25 ] train step:0    loss: 3.00000 lr: 0.250000 top1: 0.50000
"""
GLUON_CV = """\
Epoch[0] Batch [49]\tSpeed: 2489.500000 samples/sec\taccuracy=0.125000\tlr=0.250000
[Epoch 0] training: accuracy=0.250000
[Epoch 0] speed: 4028 samples/sec\ttime cost: 325.500000
[Epoch 0] validation: top1=0.500000 top5=0.750000
Epoch[1] Batch [49]\tSpeed: 2489.500000 samples/sec\taccuracy=0.375000\tlr=0.250000
"""
DEEP_LEARNING_TUTORIAL = """\
Global Step:     10, accuracy:  12.5%, loss = 2.50 (615.3 examples/sec, 0.21 sec/batch)
Accuracy on Test-Set: 25.00% (2500 / 10000)
Global Step:     20, accuracy:  37.5%, loss = 2.25 (615.3 examples/sec, 0.21 sec/batch)
Accuracy on the validation set: 0.375
"""
GAUSSIANS = """\
Training progress:  50%|#####     | 10/20 [00:01<00:01,  9.50it/s, Loss=0.2500000]
Training progress: 100%|##########| 20/20 [00:02<00:00,  9.50it/s, Loss=0.1250000]

[ITER 10] Evaluating train: L1 0.0625 PSNR 24.5 [12/01 08:55:00]

[ITER 10] Evaluating test: L1 0.125 PSNR 22.5 [12/01 08:55:00]

[ITER 10] Saving Gaussians [12/01 08:55:00]
"""

FORMS: dict[str, tuple[str, list[Told]]] = {
    "nanoGPT": (
        NANOGPT,
        [
            ("step_end", 0, {"train loss": 10.9886}),
            ("evaluate", 0, {"val loss": 10.9898}),
            ("step_end", 0, {"loss": 10.9872, "mfu": -100.0}),
            ("step_end", 250, {"train loss": 6.104}),
            ("evaluate", 250, {"val loss": 6.1234}),
            ("step_end", 250, {"loss": 6.203, "mfu": 1.21}),
        ],
    ),
    "torchtitan": (
        TORCHTITAN,
        [
            ("step_end", 1, {"loss": 8.1661, "grad_norm": 3.6855, "tps": 3502.0}),
            ("step_end", 2, {"loss": 6.1098}),
            ("evaluate", 2, {"validation/loss": 6.2098, "validation/tps": 9138.0}),
        ],
    ),
    "DeepSpeed": (
        DEEPSPEED,
        [
            ("evaluate", 0, {"eval/ppl": 4998.5}),
            ("step_end", 10, {"loss": 8.93, "iter time (s)": 1.234, "samples/sec": 3.241, "skipped": 0, "lr": 0.0003}),
            ("step_end", 20, {"CurrSamplesPerSec": 11.5, "epoch": 0}),
            ("log", 20, {"loss": 8.5}),
        ],
    ),
    "Megatron": (
        MEGATRON,
        [
            (
                "step_end",
                1,
                {
                    "consumed samples": 96,
                    "elapsed time per iteration (ms)": 18706.1,
                    "learning rate": 6e-5,
                    "lm loss": 6.444662,
                    "number of nan iterations": 0,
                },
            ),
            (
                "evaluate",
                1,
                {"validation/lm loss value": 7.1742, "validation/lm loss PPL": 1305.315, "test/lm loss value": 7.5},
            ),
            ("step_end", 2, {"lm loss": 5.0}),
        ],
    ),
    "NeMo": (
        NEMO,
        [
            ("step_end", 0, {"lr": 5e-9, "global_batch_size": 512, "reduced_train_loss": 11.04, "epoch": 0}),
            ("step_end", 1, {"lr": 1e-8, "global_batch_size": 512, "reduced_train_loss": 11.02, "epoch": 0}),
        ],
    ),
    "fairseq": (
        FAIRSEQ,
        [
            ("step_end", 100, {"loss": 4.655, "ppl": 25.2, "lr": 0.01, "epoch": 1}),
            ("evaluate", 487, {"valid/loss": 2.001, "valid/ppl": 4, "epoch": 1}),
            ("log", 487, {"train/loss": 3.001, "train/lr": 0.1, "epoch": 1}),
        ],
    ),
    "fairseq JSON": (
        FAIRSEQ_JSON,
        [
            ("step_end", 100, {"update": 0.012, "loss": 16.475, "epoch": 1}),
            ("evaluate", 487, {"valid_loss": 15.5, "epoch": 1}),
            ("log", 487, {"train_loss": 16, "epoch": 1}),
        ],
    ),
    "mmdet": (
        MMDET,
        [
            ("step_end", 50, {"lr": 1.978e-3, "s0.acc": 88.1094, "loss": 1.095}),
            ("step_end", 950, {"lr": 3.976e-3, "s0.acc": 92.6504, "loss": 0.6972}),
            ("evaluate", 962, {"val/bbox_mAP": 0.031, "val/bbox_mAP_l": -1}),
            ("step_end", 1012, {"lr": 0.02, "s0.acc": 93.0684, "loss": 0.617}),
        ],
    ),
    "MMEngine": (
        MMENGINE,
        [
            ("step_end", 50, {"lr": 7.9e-5, "grad_norm": math.nan, "loss": 859.5}),
            ("evaluate", 100, {"val/accuracy/top1": 0.357, "val/AP .5": 0.5, "val/time": 0.2}),
            ("step_end", 150, {"lr": 7.9e-5, "loss": 800.5}),
        ],
    ),
    "epochs": (
        EPOCHS,
        [
            ("step_end", 3, {"Train Loss": 0.5}),
            ("evaluate", 3, {"Val Loss": 0.6}),
            ("step_end", 4, {"Train Loss": 0.4}),
            ("evaluate", 4, {"Val Loss": 0.5}),
        ],
    ),
    "epochs of batches": (
        EPOCHS_OF_BATCHES,
        [
            ("step_end", 100, {"Loss": 0.9, "epoch": 1}),
            ("step_end", 600, {"Loss": 0.8, "epoch": 1}),
            ("step_end", 700, {"Loss": 0.7, "epoch": 2}),
        ],
    ),
    "PyTorch's MNIST": (
        MNIST,
        [
            ("step_end", 0, {"Loss": 2.3}),
            ("step_end", 640, {"Loss": 2.2}),
            ("evaluate", 640, {"test/Average loss": 0.05}),
            ("step_end", 60640, {"Loss": 1.2}),
        ],
    ),
    "PyTorch's ImageNet": (
        IMAGENET,
        [
            ("step_end", 1, {"Time": 5.123, "Loss": 6.9, "Acc@1": 0.39}),
            ("step_end", 11, {"Time": 0.123, "Loss": 6.8, "Acc@1": 0.78}),
            ("evaluate", 11, {"val/Acc@1": 10.758, "val/Acc@5": 20.078}),
            ("step_end", 5006, {"Time": 5.123, "Loss": 6.5, "Acc@1": 9.39}),
        ],
    ),
    "PyTorch's transfer learning": (
        TUTORIAL,
        [
            ("step_end", 0, {"train Loss": 0.6, "Acc": 0.7}),
            ("evaluate", 0, {"val Loss": 0.3, "val/Acc": 0.9}),
            ("step_end", 1, {"train Loss": 0.5, "Acc": 0.8}),
            ("evaluate", 1, {"val Loss": 0.2, "val/Acc": 0.95}),
        ],
    ),
    "PyTorch's quickstart": (
        QUICKSTART,
        [
            ("step_end", 64, {"loss": 2.303494}),
            ("step_end", 6464, {"loss": 2.294637}),
            ("evaluate", 6464, {"test/Accuracy": 50.9, "test/Avg loss": 2.150225}),
            ("step_end", 60064, {"loss": 2.158}),
        ],
    ),
    "Keras' progress bar": (
        KERAS_BAR,
        [
            ("step_end", 1, {"loss": 1.5, "acc": 0.4}),
            ("evaluate", 1, {"val_loss": 1.2, "val_acc": 0.5}),
            ("step_end", 2, {"acc": 0.5, "loss": 1.1}),
            ("evaluate", 2, {"val_loss": 1.0}),
        ],
    ),
    "Keras' line per epoch": (
        KERAS_LINES,
        [
            ("step_end", 1, {"loss": 0.9, "acc": 0.5}),
            ("evaluate", 1, {"val_loss": 0.95}),
            ("step_end", 2, {"loss": 0.8, "acc": 0.6}),
            ("evaluate", 2, {"val_loss": 0.9}),
        ],
    ),
    "Lightning's progress bar": (
        LIGHTNING_BAR,
        [
            ("step_end", 0, {"train_loss": 0.5}),
            ("evaluate", 0, {"val_loss": 0.6}),
            ("step_end", 1, {"train_loss": 0.4}),
            ("evaluate", 1, {"val_loss": 0.5}),
        ],
    ),
    "diffusers' progress bar": (
        DIFFUSERS,
        [
            ("step_end", 100, {"lr": 5e-5, "step_loss": 1.05}),
            ("step_end", 200, {"lr": 5e-5, "step_loss": 1.01}),
        ],
    ),
    "Hugging Face's Trainer": (
        TRAINER,
        [
            ("step_end", 1, {"loss": 2.075, "learning_rate": 0.0002}),
            ("log", 1, {"loss": 2.075, "learning_rate": 0.0002}),
            ("step_end", 2, {"loss": 1.2, "grad_norm": math.nan}),
            ("log", 2, {"loss": 1.2, "grad_norm": math.nan}),
            ("evaluate", 2, {"eval_loss": 1.1}),
            ("log", 2, {"train_runtime": 60.0, "train_loss": 1.5}),
        ],
    ),
    "LightGBM": (
        LIGHTGBM,
        [
            ("step_end", 10, {"training's binary_logloss": 0.6}),
            ("evaluate", 10, {"valid's binary_logloss": 0.63}),
            ("step_end", 20, {"training's binary_logloss": 0.5}),
            ("evaluate", 20, {"valid's binary_logloss": 0.53}),
        ],
    ),
    "XGBoost": (
        XGBOOST,
        [
            ("step_end", 0, {"train-rmse": 0.53}),
            ("evaluate", 0, {"eval-rmse": 0.55}),
            ("step_end", 1, {"train-rmse": 0.43}),
            ("evaluate", 1, {"eval-rmse": 0.45}),
        ],
    ),
    "Caffe": (
        CAFFE,
        [
            ("evaluate", 0, {"test/accuracy": 0.1012, "test/loss": 2.36}),
            ("step_end", 0, {"loss": 2.35, "lr": 0.01}),
            ("step_end", 100, {"loss": 0.21}),
            ("evaluate", 500, {"test/accuracy": 0.9712}),
        ],
    ),
    "OpenNMT": (
        OPENNMT,
        [
            ("step_end", 50, {"acc": 5.0, "ppl": 9000.1, "xent": 9.1, "lr": 0.1}),
            ("evaluate", 50, {"Validation perplexity": 100.5, "Validation accuracy": 6.5}),
            ("step_end", 100, {"acc": 6.0, "ppl": 8000.1, "xent": 9.0, "lr": 0.2}),
        ],
    ),
    "steps": (STEPS, [("step_end", 50, {"loss": 0.75}), ("step_end", 100, {"loss": 0.5})]),
    "Flair": (
        FLAIR,
        [
            ("step_end", 50, {"loss": 0.75, "samples/sec": 8.0, "lr": 5e-6, "epoch": 1}),
            ("step_end", 100, {"loss": 0.5, "samples/sec": 8.0, "lr": 5e-6, "epoch": 1}),
            ("log", 100, {"loss": 0.625, "lr": 5e-6}),
            ("evaluate", 100, {"dev/loss": 0.25, "dev/score": 0.875}),
            ("step_end", 150, {"loss": 0.375, "samples/sec": 8.0, "lr": 4e-6, "epoch": 2}),
        ],
    ),
    "CycleGAN": (
        CYCLEGAN,
        [
            ("step_end", 100, {"time": 0.2, "data": 0.25, "D_A": 0.25, "G_A": 0.5, "epoch": 1}),
            ("step_end", 200, {"time": 0.2, "data": 0.01, "D_A": 0.5, "G_A": 0.25, "epoch": 1}),
            ("step_end", 300, {"time": 0.2, "data": 0.25, "D_A": 0.125, "G_A": 0.5, "epoch": 2}),
        ],
    ),
    "OLMo": (
        OLMO,
        [
            (
                "step_end",
                step,
                {
                    "optim/total_grad_norm": norm,
                    "train/CrossEntropyLoss": loss,
                    "throughput/total_tokens": tokens,
                },
            )
            for step, norm, loss, tokens in ((1, 0.25, 3.0, 2_097_152), (2, 0.5, 2.75, 4_194_304))
        ],
    ),
    "Coqui": (
        COQUI,
        [
            ("step_end", 500020, {"loss_disc": 3.5, "grad_norm_0": 0.5, "current_lr_0": 0.0002}),
            ("evaluate", 500020, {"eval/avg_loader_time": 10, "eval/avg_loss_disc": 3.25}),
            ("step_end", 500040, {"loss_disc": 3}),
        ],
    ),
    "Tesseract": (
        TESSERACT,
        [
            (
                "step_end",
                100,
                {"Mean rms": 5.5, "char train": 99.25, "skip": 0, "New best char error": 99.25},
            ),
            ("step_end", 200, {"Mean rms": 5.25, "char train": 99.5, "skip": 0}),
        ],
    ),
    "PyTorch's CIFAR tutorial": (
        CIFAR,
        [
            ("step_end", 2000, {"loss": 2.25, "epoch": 1}),
            ("step_end", 4000, {"loss": 1.875, "epoch": 1}),
            ("step_end", 6000, {"loss": 1.75, "epoch": 2}),
        ],
    ),
    "CatBoost": (
        CATBOOST,
        [
            event
            for step, learn, test in ((0, 0.6931, 0.6935), (1, 0.5, 0.625), (2, 0.25, 0.75))
            for event in (("step_end", step, {"learn": learn}), ("evaluate", step, {"test": test}))
        ],
    ),
    "kohya's progress bar": (
        KOHYA,
        [("step_end", step, {"avr_loss": loss}) for step, loss in ((1, 0.5), (2, 0.25), (3, 0.125), (4, 0.1))],
    ),
    "TensorFlow's Estimator": (
        ESTIMATOR,
        [
            ("step_end", 0, {"loss": 2.5}),
            ("step_end", 100, {"loss": 1.25}),
            ("evaluate", 200, {"eval/accuracy": 0.875, "eval/average_loss": 0.25, "eval/loss": 32.0}),
        ],
    ),
    "spaCy": (
        SPACY,
        [
            event
            for step, epoch, tok2vec, ner, f1, score in (
                (0, 0, 47.25, 49.5, 0.25, 0),
                (200, 0, 1070.5, 2480, 57.5, 0.57),
                (400, 1, 121, 1840.25, 70, 0.7),
            )
            for event in (
                ("step_end", step, {"LOSS TOK2VEC": tok2vec, "LOSS NER": ner, "epoch": epoch}),
                ("evaluate", step, {"dev/ENTS_F": f1, "dev/SCORE": score}),
            )
        ],
    ),
    "skorch": (
        SKORCH,
        [
            ("step_end", 1, {"train_loss": 0.6875, "dur": 0.0541}),
            ("evaluate", 1, {"valid_acc": 0.5, "valid_loss": 0.675}),
            ("step_end", 2, {"train_loss": 0.5, "dur": 0.05}),
            ("evaluate", 2, {"valid_acc": 0.45, "valid_loss": 0.75}),
        ],
    ),
    "MaxText": (
        MAXTEXT,
        [
            (
                "step_end",
                step,
                {
                    "seconds": seconds,
                    "TFLOP/s/device": flops,
                    "Tokens/s/device": tokens,
                    "total_weights": 8192,
                    "loss": loss,
                },
            )
            for step, seconds, flops, tokens, loss in ((0, 20.125, 1.5, 25.5, 10.875), (1, 0.125, 50.5, 900.5, 10.5))
        ],
    ),
    "Unity ML-Agents": (
        UNITY,
        [
            ("step_end", 12000, {"3DBall/Mean Reward": 1.125, "3DBall/Std of Reward": 0.75}),
            (
                "step_end",
                36000,
                {"3DBall/Mean Reward": -1.5, "3DBall/Mean Group Reward": 0.25, "3DBall/ELO": 1200.5},
            ),
        ],
    ),
    "Unity ML-Agents before 1.0": (
        OLD_UNITY,
        [
            ("step_end", 1000, {"BallBrain/Mean Reward": 1.25, "BallBrain/Std of Reward": 0.75}),
            ("step_end", 2000, {"BallBrain/Mean Reward": 2, "BallBrain/Std of Reward": 0.5}),
        ],
    ),
    "StyleGAN": (
        STYLEGAN,
        [
            (
                "step_end",
                0,
                {
                    "kimg": 0,
                    "sec/tick": 4.25,
                    "sec/kimg": 1079.75,
                    "maintenance": 30.5,
                    "cpumem": 3.75,
                    "augment": 0,
                },
            ),
            ("evaluate", 0, {"eval/fid50k_full": 380.5}),
            (
                "step_end",
                1,
                {
                    "kimg": 4,
                    "sec/tick": 450.5,
                    "sec/kimg": 112.5,
                    "maintenance": 0.5,
                    "cpumem": 3.75,
                    "augment": 0.125,
                },
            ),
        ],
    ),
    "StyleGAN of TensorFlow": (
        OLD_STYLEGAN,
        [
            event
            for tick, kimg, evaluated in ((1, 8.5, [("evaluate", 1, {"eval/fid50k": 300.125})]), (2, 16.5, []))
            for event in (
                (
                    "step_end",
                    tick,
                    {
                        "kimg": kimg,
                        "lod": 0,
                        "minibatch": 32,
                        "sec/tick": 60.5,
                        "sec/kimg": 7.5,
                        "maintenance": 20.5,
                        "gpumem": 4.5,
                    },
                ),
                *evaluated,
            )
        ],
    ),
    "DeePMD's learning curve": (
        DEEPMD,
        [
            ("step_end", 0, {"rmse_trn": 35, "rmse_e_trn": 12.5, "lr": 0.001}),
            ("evaluate", 0, {"rmse_val": 32.5, "rmse_e_val": 10}),
            ("step_end", 100, {"rmse_trn": 27.5, "rmse_e_trn": math.nan, "lr": 0.001}),
            ("evaluate", 100, {"rmse_val": 25, "rmse_e_val": 1.25}),
        ],
    ),
    "Chainer's PrintReport": (
        CHAINER,
        [
            ("step_end", 10, {"main/loss": 6.25, "main/accuracy": 0.375, "epoch": 1}),
            ("evaluate", 10, {"validation/main/loss": 3.5}),
            ("step_end", 20, {"main/loss": 3.5, "main/accuracy": 0.5, "epoch": 1}),
            ("step_end", 30, {"main/loss": 1.75, "main/accuracy": 0.625, "epoch": 2}),
            ("evaluate", 30, {"validation/main/loss": 2.25}),
        ],
    ),
    "fastai": (
        FASTAI,
        [
            event
            for epoch, train, valid, accuracy in ((0, 0.5, 0.375, 0.85), (1, 0.25, 0.25, 0.875))
            for event in (
                ("step_end", epoch, {"train_loss": train}),
                ("evaluate", epoch, {"valid_loss": valid, "valid/accuracy": accuracy}),
            )
        ],
    ),
    "numpy's table": (
        NUMPY,
        [("step_end", 1, {"loss": 0.5, "acc": 0.25}), ("step_end", 2, {"loss": 0.25, "acc": 0.75})],
    ),
    "timm": (
        TIMM,
        [
            ("step_end", 0, {"Loss": 6.75, "LR": 1e-6, "Data": 1.5}),
            ("step_end", 50, {"Loss": 6.5, "LR": 1e-6, "Data": 0.5}),
            ("evaluate", 50, {"test/Loss": 6.25, "test/Acc@1": 0.5}),
            ("step_end", 1251, {"Loss": 6.25, "LR": 1e-5, "Data": 1.5}),
        ],
    ),
    "Swin": (
        SWIN,
        [
            ("step_end", 0, {"lr": 1e-6, "loss": 6.75, "grad_norm": 1.5}),
            ("step_end", 10, {"lr": 1e-6, "loss": 6.5, "grad_norm": 1.25}),
            ("evaluate", 10, {"val/Acc@1": 10.5, "val/Acc@5": 20.5}),
            ("step_end", 1251, {"lr": 1e-6, "loss": 6.25, "grad_norm": 1.5}),
        ],
    ),
    "OpenCLIP": (
        OPEN_CLIP,
        [
            *(
                ("step_end", step, {"Data (t)": 0.5, "Batch (t)": 1.5, "LR": lr, "Logit Scale": 14.25, "Loss": loss})
                for step, lr, loss in ((512, 1e-6, 5.5), (51712, 2e-6, 5.25))
            ),
            (
                "evaluate",
                100_000,
                {"eval/imagenet-zeroshot-val-top1": 0.25, "eval/imagenet-zeroshot-val-top5": 0.5},
            ),
        ],
    ),
    "MXNet": (
        MXNET,
        [
            ("step_end", 20, {"Speed": 1522.5, "accuracy": 0.125, "epoch": 0}),
            ("step_end", 40, {"Speed": 1522.5, "accuracy": 0.25, "epoch": 0}),
            ("log", 40, {"Train-accuracy": 0.1875}),
            ("evaluate", 40, {"Validation-accuracy": 0.5}),
            ("step_end", 60, {"Speed": 1522.5, "accuracy": 0.375, "epoch": 1}),
        ],
    ),
    "Composer": (
        COMPOSER,
        [
            ("step_end", 1, {"Train time/epoch": 0, "Train loss/train/total": 5.5}),
            ("step_end", 2, {"Train time/epoch": 0, "Train loss/train/total": 5.25}),
            ("evaluate", 2, {"Eval metrics/eval/CrossEntropy": 5.75}),
        ],
    ),
    "rsl_rl": (
        RSL_RL,
        [
            (
                "step_end",
                step,
                {
                    "Computation": 50000,
                    "Mean value_function loss": loss,
                    "Mean reward": reward,
                    "Total timesteps": steps,
                },
            )
            for step, loss, reward, steps in ((0, 0.0625, 1.25, 98304), (1, 0.0312, 2.25, 196608))
        ],
    ),
    "Stable-Baselines3": (
        SB3,
        [
            ("step_end", 2048, {"rollout/ep_rew_mean": 22.5}),
            ("evaluate", 4096, {"eval/episode_reward": 30.5, "eval/mean_reward": 30.5}),
            ("step_end", 4096, {"rollout/ep_rew_mean": 25.5, "train/loss": 5.25}),
        ],
    ),
    "Spinning Up": (
        SPINUP,
        [
            ("step_end", 0, {"AverageEpRet": 22.5, "TotalEnvInteracts": 4000}),
            ("step_end", 1, {"AverageEpRet": 32.5, "TotalEnvInteracts": 4000}),
        ],
    ),
    "icefall": (
        ICEFALL,
        [
            ("step_end", 50, {"loss": 0.25, "batch size": 20, "lr": 0.003, "epoch": 1}),
            ("evaluate", 50, {"validation/loss": 0.75, "validation/simple_loss": 0.5}),
            ("step_end", 100, {"loss": 0.125, "batch size": 20, "lr": 0.003, "epoch": 2}),
        ],
    ),
    "TensorFlow's object detection": (
        OBJECT_DETECTION,
        [
            ("step_end", 100, {"Loss/classification_loss": 0.5, "Loss/total_loss": 0.75, "learning_rate": 0.04}),
            ("step_end", 200, {"Loss/classification_loss": 0.25, "Loss/total_loss": 0.375, "learning_rate": 0.04}),
        ],
    ),
    "TensorFlow's model garden": (
        MODEL_GARDEN,
        [
            ("step_end", 100, {"training_loss": 0.5, "train/learning_rate": 0.25}),
            ("step_end", 200, {"training_loss": 0.25, "train/learning_rate": 0.25}),
            ("evaluate", 200, {"validation_loss": 0.75, "eval/accuracy": 0.5}),
        ],
    ),
    "Marian": (
        MARIAN,
        [
            ("step_end", 500, {"Cost": 7.25, "epoch": 1}),
            ("step_end", 1000, {"Cost": 6.25, "epoch": 1}),
            ("evaluate", 1000, {"valid/cross-entropy": 45.5, "epoch": 1}),
        ],
    ),
    "torchtune's progress bar": (
        TORCHTUNE,
        [("step_end", 1, {"Loss": 1.5, "epoch": 1}), ("step_end", 2, {"Loss": 1.25, "epoch": 1})],
    ),
    "Darknet": (
        DARKNET,
        [
            ("step_end", 1, {"loss": 1250.5, "avg loss": 1250.5, "rate": 0.25}),
            ("step_end", 2, {"loss": 1200.5, "avg loss": 1245.5, "rate": 0.25}),
        ],
    ),
    "scikit-learn's boosting": (
        SKLEARN,
        [("step_end", 1, {"Train Loss": 1.25}), ("step_end", 2, {"Train Loss": 1.125})],
    ),
    "GluonTS": (
        GLUONTS,
        [
            ("step_end", 0, {"Learning rate is": 0.25, "epoch_loss": 5.5}),
            ("step_end", 1, {"Learning rate is": 0.25, "epoch_loss": 5.25}),
        ],
    ),
    "SwAV": (
        SWAV,
        [
            ("step_end", 0, {"Time": 2.5, "Data": 1.5, "Loss": 2.5, "Lr": 0}),
            ("step_end", 50, {"Time": 0.5, "Data": 0, "Loss": 2.25, "Lr": 0.0625}),
            ("step_end", 51, {"Time": 2.5, "Data": 1.5, "Loss": 2.25, "Lr": 0.125}),
            ("step_end", 101, {"Time": 0.5, "Data": 0, "Loss": 2.0, "Lr": 0.25}),
        ],
    ),
    "Paddle": (
        PADDLE,
        [
            ("step_end", 10, {"loss": 0.5, "acc": 0.25}),
            ("step_end", 20, {"loss": 0.25, "acc": 0.5}),
            ("evaluate", 20, {"eval/loss": 0.625, "eval/acc": 0.375}),
            ("step_end", 30, {"loss": 0.125, "acc": 0.75}),
        ],
    ),
    "PaddleVideo": (
        PADDLE_VIDEO,
        [
            ("step_end", 0, {"loss": 5.0, "lr": 0.25, "top1": 0.125, "epoch": 1}),
            ("step_end", 100, {"loss": 3.5, "lr": 0.25, "top1": 0.25, "epoch": 1}),
            ("log", 100, {"train loss_avg": 4.0, "top1_avg": 0.1875}),
            ("evaluate", 100, {"val loss_avg": 3.75, "val/top1_avg": 0.375}),
            ("step_end", 101, {"loss": 3.0, "lr": 0.25, "top1": 0.5, "epoch": 2}),
        ],
    ),
    "GluonCV": (
        GLUON_CV,
        [
            ("step_end", 49, {"Speed": 2489.5, "accuracy": 0.125, "lr": 0.25, "epoch": 0}),
            ("log", 49, {"train/accuracy": 0.25, "speed": 4028, "time cost": 325.5}),
            ("evaluate", 49, {"validation/top1": 0.5, "validation/top5": 0.75}),
            ("step_end", 98, {"Speed": 2489.5, "accuracy": 0.375, "lr": 0.25, "epoch": 1}),
        ],
    ),
    "a tutorial of TensorFlow": (
        DEEP_LEARNING_TUTORIAL,
        [
            ("step_end", 10, {"accuracy": 12.5, "loss": 2.5}),
            ("evaluate", 10, {"Accuracy on Test-Set": 25.0}),
            ("step_end", 20, {"accuracy": 37.5, "loss": 2.25}),
            ("evaluate", 20, {"Accuracy on the validation set": 0.375}),
        ],
    ),
    "Gaussian Splatting": (
        GAUSSIANS,
        [
            ("step_end", 10, {"Loss": 0.25}),
            ("step_end", 20, {"Loss": 0.125}),
            ("step_end", 10, {"train/L1": 0.0625, "train/PSNR": 24.5}),
            ("evaluate", 10, {"test/L1": 0.125, "test/PSNR": 22.5}),
        ],
    ),
}
