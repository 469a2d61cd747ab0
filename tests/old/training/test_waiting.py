"""On a GPU the host never waits: no rule of training looks at a value in a step."""

import pytest
import tiny
import torch
from pretended_gpu import PretendedGPU
from tiny import PLANS

import headwise as hw


@pytest.mark.parametrize("plan", ["mae", "weighted", "moa"])
def test_steps_by_the_rules(plan):
    model = tiny.model(PLANS[plan], dropout=0.1).to("meta").train()
    ids = torch.randint(3, tiny.VOCABULARY, (2, 6)).to("meta")

    def loss():
        return model(input_ids=ids, labels=ids).loss

    with PretendedGPU():
        rules = hw.training_rules(model, total_steps=3, steps_per_epoch=1)
        optimizer = torch.optim.Adam(rules.parameter_groups(lr=1e-3), foreach=False)
        for _ in range(3):
            rules.before_step(loss)
            with rules.step(optimizer):
                loss().backward()
            optimizer.step()
            rules.after_step()
            optimizer.zero_grad()
    assert rules.moment.step == 3
