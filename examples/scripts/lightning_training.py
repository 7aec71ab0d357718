"""A classifier of handwritten digits in Lightning, recorded and steered: python lightning_training.py [POLICY]."""

import sys

import lightning
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split

from steptape.integrations.lightning import SteptapeLogger


class Digits(lightning.LightningModule):
    def __init__(self, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("eval_loss", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


lightning.seed_everything(1)
pixels, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels))
training, held_out = (DataLoader(part, batch_size=64) for part in random_split(data, [0.75, 0.25]))

tape = SteptapeLogger("runs", rules=sys.argv[1] if len(sys.argv) > 1 else None)
trainer = lightning.Trainer(max_epochs=10, logger=tape, callbacks=[tape.callback()])
trainer.fit(Digits(), training, held_out)
