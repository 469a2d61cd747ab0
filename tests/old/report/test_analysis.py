"""`headwise.Analysis` of a module that is none of headwise's, and what it is handed wrongly."""

import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import headwise as hw


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.attention = hw.MixtureOfAttentiveExperts(8, 2)

    def forward(self, input_ids, attention_mask=None):
        padding = None if attention_mask is None else attention_mask == 0
        return self.attention(self.embedding(input_ids), key_padding_mask=padding).output


class Stream(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def batches(number=3):
    ids = torch.randint(9, (4, 6))
    return [{"input_ids": ids, "attention_mask": (ids > 0).long()} for _ in range(number)]


def test_batches_may_be_gone_through_once():
    model, given = Own(), batches()
    first = hw.Analysis(model, given, tokens="input_ids").record
    assert hw.Analysis(model, iter(given), tokens="input_ids").record == first
    stream = DataLoader(Stream(given), batch_size=None)  # which has no length
    assert hw.Analysis(model, stream, tokens="input_ids").record == first
    assert first.sequences == 12


SIZES = {"vocab_size": 9, "embed_dim": 8, "num_heads": 2, "ffn_dim": 8, "attention": "mae"}


def test_labels_without_a_token_are_none():
    model, ids = hw.CausalLM(hw.CausalLMConfig(**SIZES, layers=1)), torch.arange(9).repeat(2, 2)
    given = [{"input_ids": ids, "labels": ids.where(ids > 3, -100)}]
    names = "abcdefghi".__getitem__  # of -100 it has none
    (found,) = hw.Analysis(model, given, tokens="labels", names=names).record.ranges
    assert {each.name: each.count for each in found.tokens} == dict.fromkeys("efghi", 4)


def test_one_name_for_the_tokens_of_two_stacks_is_refused():
    model, ids = hw.Seq2SeqLM(hw.Seq2SeqLMConfig(**SIZES)), torch.arange(9).repeat(2, 2)
    given = [{"input_ids": ids, "decoder_input_ids": ids}]
    with pytest.raises(ValueError, match="tokens is 'input_ids', but the model has two stacks"):
        _ = hw.Analysis(model, given, tokens="input_ids").record


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (torch.arange(9), "a batch is a Tensor, expected a mapping of the arguments"),
        ({"input_ids": [[1, 2]]}, "a batch has a list as 'input_ids', expected a mapping"),
    ],
)
def test_batches_that_are_no_mappings_of_tensors_are_refused(batch, said):
    with pytest.raises(ValueError, match=said):
        _ = hw.Analysis(hw.CausalLM(hw.CausalLMConfig(**SIZES, layers=1)), [batch]).record


def test_quality_of_other_items_under_ablation_is_refused():
    model, calls = Own(), []

    def quality():
        calls.append(0)
        return torch.rand(20 + len(calls))

    with pytest.raises(ValueError, match="items"):
        _ = hw.Analysis(model, batches(), quality=quality).record
    standard = nn.ModuleDict({"attention": hw.MultiHeadAttention(8, 2)})
    standard.forward = lambda inputs: standard["attention"](inputs).output
    given = [{"inputs": torch.randn(2, 5, 8)}]
    with pytest.raises(ValueError, match="expected the same items"):
        _ = hw.Analysis(standard, given, quality=quality).record


def test_an_attention_that_is_standard_has_likeness_and_ablations_alone(tmp_path):
    model = nn.ModuleDict({"attention": hw.MultiHeadAttention(8, 2)})
    model.forward = lambda inputs: model["attention"](inputs).output
    given = [{"inputs": torch.randn(12, 5, 8)}]

    def quality():
        with torch.no_grad():
            return model(**given[0]).square().mean((1, 2))

    analysis = hw.Analysis(model, given, quality=quality, ablations="all")
    assert analysis.record.entropy is None and analysis.record.load == []
    assert len(analysis.record.likeness.modules) == 1
    assert len(analysis.record.ablations.results) == 4  # each head removed, each left alone
    assert "<svg" in analysis.write(tmp_path).read_text(encoding="utf-8")


class Routed(nn.Module):
    """Expert 0 takes token 3 alone; token 4 goes to expert 1, and all others to expert 2."""

    def __init__(self):
        super().__init__()
        self.attention = hw.MixtureOfAttentionHeads(8, num_experts=4, top_k=1, head_dim=4)
        goes_to = torch.tensor([2, 2, 2, 0, 1, 2, 2, 2])
        with torch.no_grad():
            self.attention.router.weight.copy_(10 * nn.functional.one_hot(goes_to, 4).T)
            self.attention.expert_output[0] = 0.0  # it says nothing

    def forward(self, input_ids):
        return self.attention(nn.functional.one_hot(input_ids, 8).float()).output


def test_a_model_whose_experts_are_known_is_found_to_be_so():
    torch.manual_seed(0)
    model, ids = Routed(), torch.arange(8).repeat(12, 2)

    def quality():
        with torch.no_grad():
            return -model(ids).square().sum((1, 2))

    names = {3: "the", 4: "a"}
    given = [{"input_ids": part} for part in ids.split(4)]
    analysis = hw.Analysis(model, given, tokens="input_ids", names=names, quality=quality)
    found = analysis.record
    experts = found.tokens[0].units
    assert [[each.name for each in expert.leading] for expert in experts[:2]] == [["the"], ["a"]]
    assert experts[0].leading[0].pmi == pytest.approx(torch.tensor(8.0).log().item())
    assert experts[3].leading == []
    assert found.load[0].chosen.shares == [1 / 8, 1 / 8, 6 / 8, 0]
    assert found.load[0].chosen.unused == 1
    assert found.entropy.modules[0].spread.mean.value == pytest.approx(0, abs=1e-6)
    explained = {each.label: each.share for each in found.explained}
    assert explained["token"] == pytest.approx(1)
    idle = [r for r in found.ablations.results if r.ablation == "without-expert" and r.number == 3]
    assert [r.score.difference for r in idle] == [0]


def test_a_plain_model_of_transformers():
    config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8)
    model = transformers.GPT2LMHeadModel(config).eval()
    given, names = batches(1), list(model.state_dict())

    def losses():
        rows = given[0]["input_ids"].split(1)
        return [model(input_ids=row, labels=row).loss.item() for row in rows]

    analysis = hw.Analysis(model, given, quality=losses, higher_is_better=False)
    by_hand = losses()
    with hw.ablated(model, "transformer.h.0.attn", head=1):
        removed = losses()
    record = analysis.record
    (cost,) = [each.score.cost for each in record.ablations.results if each.options == {"head": 1}]
    assert cost == pytest.approx((sum(removed) - sum(by_hand)) / 4, abs=1e-6)
    assert cost != 0
    assert record.likeness.modules[0].mean_outputs is not None
    assert record.likeness.modules[0].mean_attention is not None
    assert record.likeness.modules[0].where.site == "decoder_self"
    assert list(model.state_dict()) == names
    assert losses() == by_hand


@pytest.mark.parametrize("gated", [False, True])
def test_padded_labels_of_a_decoder_count_nowhere(gated):
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=9, decoder_start_token_id=0, **sizes)
    model = transformers.T5ForConditionalGeneration(config)
    if gated:
        hw.gate_heads(model, "gated")
    targets = [torch.randint(1, 9, (length,)) for length in (6, 3, 1, 4)]
    labels = nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=-100)
    labels[0, 1] = -100  # has no loss, and is there
    given = {"input_ids": torch.randint(1, 9, (4, 6)), "labels": labels}
    together = hw.Analysis(model, [given], tokens={"decoder": "labels"}).record
    one_by_one = zip(*(tensor.split(1) for tensor in given.values()), strict=True)
    apart = [
        {"input_ids": ids, "labels": own[:, : len(target)]}
        for (ids, own), target in zip(one_by_one, targets, strict=True)
    ]
    expected = hw.Analysis(model, apart, tokens={"decoder": "labels"}).record
    assert [each.rows for each in together.load] == [24, 14, 14] * gated
    assert [each.positions for each in together.likeness.modules] == [24, 14, 14]
    for one, other in zip(together.likeness.modules, expected.likeness.modules, strict=True):
        assert one.queries == other.queries
        assert one.mean_attention == pytest.approx(other.mean_attention, rel=1e-5)
