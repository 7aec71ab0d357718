"""A classifier of handwritten digits with Accelerate: accelerate launch accelerate_training.py [POLICY]."""

import sys

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from steptape import Recorder
from steptape.integrations.accelerate import SteptapeTracker

torch.manual_seed(1)
accelerator = Accelerator(gradient_accumulation_steps=2)
rec = Recorder("runs", rules=sys.argv[1] if len(sys.argv) > 1 else None)  # After the process group.
SteptapeTracker(rec).attach(accelerator)
accelerator.register_for_checkpointing(rec)
accelerator.init_trackers("digits", config={"lr": 1e-2})

pixels, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels))
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=64, shuffle=True))

for _epoch in range(10):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            rec.step(loss=loss, applied=not accelerator.optimizer_step_was_skipped)
        if rec.agree().should_save:
            accelerator.save_state("ordered")
            rec.save("ordered")
        if rec.control.should_stop:
            break
    if rec.control.should_stop:
        break
rec.close()
accelerator.end_training()
