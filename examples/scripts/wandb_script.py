"""A script that logs to W&B, as it was but for its import, the rules and the lines that obey them."""

import random
from pathlib import Path

import steptape.integrations.wandb as wandb

random.seed(0)
run = wandb.init(project="examples", config={"lr": 0.1}, rules="loss_spike")
weight = 5.0
for step in range(1, 201):
    gradient = 2 * (weight - 1) + random.gauss(0, 0.1)
    weight -= wandb.config.lr * gradient * (15 if step > 160 else 1)
    loss = 1 + (weight - 1) ** 2
    wandb.log({"loss": loss, "grad_norm": abs(gradient)}, step=step)
    if step % 50 == 0:
        wandb.log({"val/loss": loss + 0.01}, step=step)
    if run.control.should_save:
        Path("weight.txt").write_text(str(weight))
        wandb.log_model("weight.txt")
    if run.should_stop:
        break
wandb.finish()
