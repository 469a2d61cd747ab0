"""The loss of a model on data."""

import pytest
import torch
import toy

from headwise.models.evaluating import aside_of_training, validation_loss


def test_validation_is_the_mean_over_labels_without_smoothing():
    network = toy.model(dropout=0.5)
    batches = [toy.join(toy.Reversals(5).items), toy.join(toy.Reversals(9, seed=3).items)]
    found = validation_loss(network, batches)
    assert not network.training
    nll, labels = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            log_p = network(**batch).logits.log_softmax(-1)
            for row, targets in zip(log_p, batch["labels"], strict=True):
                for position, target in enumerate(targets.tolist()):
                    if target != -100:
                        nll -= float(row[position, target])
                        labels += 1
    assert found == pytest.approx(nll / labels, rel=1e-5)


def test_a_look_aside_changes_nothing_of_the_training():
    network = toy.model().train()
    network.encoder.eval()  # a part that is not in training stays so
    modes = [module.training for module in network.modules()]
    before = torch.get_rng_state()
    with aside_of_training(network):
        assert not any(module.training for module in network.modules())
        assert not network(**toy.join(toy.Reversals(2).items)).loss.requires_grad
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in network.modules()] == modes
