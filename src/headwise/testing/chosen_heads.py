"""The check of systems in which each query has heads of its own."""

from headwise.heads.attention import Attention
from headwise.heads.heads_read import HeadsRead
from headwise.models.heads_read import heads_read
from headwise.testing.subject import BATCH, KEYS, TIME, Subject, close, random_input


def check_chosen_heads(subject: Subject) -> None:
    module = subject.build()
    if not isinstance(module, Attention) or not module.chooses_heads:
        return
    reads: list[HeadsRead] = []
    with heads_read(module, lambda place, read: reads.append(read)):
        subject.call(module, random_input(BATCH, TIME), random_input(BATCH, KEYS))
    (read,) = reads
    shape = (BATCH, TIME, read.q.size(1))
    subject.expect(
        read.chosen is not None and read.chosen.shape == shape,
        f"chooses_heads is set, but routing.indices are not the {shape[-1]} heads of each query",
        f"expected integers of shape (batch, queries, heads) = {shape}",
    )
    assert read.chosen is not None
    try:
        every = read.every_head()
    except NotImplementedError as error:
        problem = "chooses_heads is set without queries_of_every_head"
        subject.expect(False, problem, f"override it: {error}")
        raise
    picked = read.chosen.transpose(1, 2).unsqueeze(-1).expand_as(read.outputs)
    subject.expect(
        every.num_heads == read.num_heads and close(every.outputs.gather(1, picked), read.outputs),
        "what every head would read is not, at the chosen ones, what these have read",
        "queries_of_every_head returns (batch, heads, queries, head_dim), in the order that "
        "routing.indices count in",
    )
