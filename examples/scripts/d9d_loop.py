"""A loop on the event bus of d9d 0.24, recorded and steered: python d9d_loop.py [POLICY]. d9d's trainer needs CUDA."""

import sys
from types import SimpleNamespace

import torch
from d9d.loop.component import JobSchedule
from d9d.loop.config import JobScheduleConfig
from d9d.loop.event import EventBus
from d9d.loop.event.catalogue import train as events
from d9d.loop.event.catalogue.common import EventStepContext
from d9d.tracker import RunConfig, Scalar, TrackerPoint

from steptape.integrations.d9d import D9dRecorder

torch.manual_seed(0)
model, target = torch.nn.Linear(16, 1), torch.randn(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = JobSchedule(JobScheduleConfig(total_steps=200), SimpleNamespace(total_steps=None))
bus, ctx = EventBus(), EventStepContext(schedule=schedule)


def save():
    torch.save(model.state_dict(), "ordered.pt")
    recorder.rec.save("ordered.pt")


recorder = D9dRecorder("runs", rules=sys.argv[1] if len(sys.argv) > 1 else None, callbacks={"save": save})
recorder.register(SimpleNamespace(event_bus=bus))  # In a job of d9d, register_events of the task gives this context.
bus.trigger(events.EVENT_TRAIN_OPTIMIZER_READY, events.EventOptimizerReadyContext(optimizer=optimizer))
with recorder, recorder.tracker().open(RunConfig(name="d9d", hparams={"lr": 1e-2})) as run:
    while schedule.current_step < schedule.total_steps:
        bus.trigger(events.EVENT_TRAIN_STEP_PRE, ctx)
        with bus.bounded(events.EVENT_TRAIN_FORWARD_BACKWARD_PRE, events.EVENT_TRAIN_FORWARD_BACKWARD_POST, ctx):
            batch = torch.randn(64, 16)
            loss = (model(batch) - batch @ target).pow(2).mean()
            loss.backward()
        with bus.bounded(events.EVENT_TRAIN_OPTIMIZER_STEP_PRE, events.EVENT_TRAIN_OPTIMIZER_STEP_POST, ctx):
            optimizer.step()
            optimizer.zero_grad()
        run.write(TrackerPoint(name="loss", step=schedule.current_step, context={}), Scalar(value=loss.item()))
        bus.trigger(events.EVENT_TRAIN_STEP_POST, ctx)
        schedule.step()
