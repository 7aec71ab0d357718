"""A script that writes for TensorBoard, as it was but for its import, the rules and the lines that obey them."""

import random
from pathlib import Path

from steptape.integrations.tensorboard import SummaryWriter

random.seed(0)
weight = 5.0
with SummaryWriter("runs/parabola", rules="loss_spike") as writer:
    for step in range(1, 201):
        gradient = 2 * (weight - 1) + random.gauss(0, 0.1)
        weight -= 0.1 * gradient * (15 if step > 160 else 1)
        loss = 1 + (weight - 1) ** 2
        writer.add_scalar("loss", loss, step)
        writer.add_scalar("grad_norm", abs(gradient), step)
        if step % 50 == 0:
            writer.add_scalar("Loss/val", loss + 0.01, step)
        if writer.control.should_save:
            Path("weight.txt").write_text(str(weight))
            writer.recorder.save("weight.txt")
        if writer.control.should_stop:
            break
