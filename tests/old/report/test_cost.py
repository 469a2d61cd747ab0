"""The tables of costs, and of the papers' figures."""

import io

from rich.console import Console

from headwise.analysis.papers import Figure, Paper
from headwise.models.seq2seq import Seq2SeqLMConfig
from headwise.report.cost import cost_table, papers_summary


def test_the_table_has_a_row_for_each_system():
    sizes = {"vocab_size": 50, "embed_dim": 16, "num_heads": 4, "ffn_dim": 32, "encoder_layers": 1}
    configs = {
        name: Seq2SeqLMConfig(attention=system, **sizes, decoder_layers=1)
        for name, system in (("standard", "standard"), ("mae-7", "mae"))
    }
    file = io.StringIO()
    Console(width=80, file=file).print(cost_table("mine", configs, {"encoder": 7, "decoder": 3}))
    lines = file.getvalue().splitlines()
    rows = [line.split() for line in lines if line.split()[:1] in (["standard"], ["mae-7"])]
    assert [row[0] for row in rows] == ["standard", "mae-7"]
    assert rows[0][3] == "0"
    assert rows[1][3] == "16.2k"
    assert "With a vocabulary of 50;" in " ".join(lines)
    assert "7 source and 3 target tokens" in " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 80


def test_the_share_of_the_exchange_is_that_of_its_layers_parameters():
    def said(attention):
        sizes = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 32}
        configs = {"mine": Seq2SeqLMConfig(attention=attention, **sizes)}
        return cost_table("", configs, {"encoder": 4, "decoder": 5}).caption.plain

    plan = {"system": "tim", "num_mechanisms": 2, "exchange_heads": 1, "exchange_head_dim": 4}
    exchange = 4 * 16 * 4
    encoder = 4 * 16 * 8 + 16 * 32 + 3 * 2 * 16 + 16 + exchange  # the 16 are the competition's
    decoder = encoder + 4 * 16 * 8 + 2 * 16
    share = 2 * exchange / (encoder + decoder)  # as many layers here as there
    assert f" The exchange has {share:.1%} of the parameters of mine's layers." in said(plan)
    assert "exchange" not in said("standard")


def test_it_is_said_whose_lengths_they_are():
    caption = cost_table(
        "", {"a": Seq2SeqLMConfig()}, {"encoder": 4, "decoder": 5}, "table 9"
    ).caption
    assert "MACs: 4 source and 5 target tokens (table 9); linear" in caption.plain


def test_the_summary_counts_what_differs_and_what_is_missing():
    figures = [Figure("", "params", "65M", ours) for ours in (65e6, 65e6, 70e6, None)]
    said = papers_summary([Paper("", "", tuple(figures))])
    assert said.startswith("2 of 4 figures agree (MACs to 0.5%, parameters to 1.5%, or ")
    assert said.endswith("; 1 do not (≠); 1 cannot be counted here (–)")
    assert "≠" not in papers_summary([Paper("", "", tuple(figures[:2]))])
