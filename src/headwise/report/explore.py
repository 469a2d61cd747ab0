"""`hw.explore` and `headwise explore`: a page that shows models at work on one input.

The page holds the attention weights of each head, the decisions of the systems, and the output
without each head, expert or mechanism. Each of these outputs is a forward pass that is computed
ahead, so that a click can remove a part without a server. The page is one HTML file, whose script
runs in any browser, offline.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jinja2
import torch
from markupsafe import Markup
from rich.console import Console
from torch import Tensor, nn

from headwise.analysis.ablations import count_parts, removable_parts
from headwise.analysis.decisions import scaled
from headwise.files import write_text
from headwise.heads.attention import AttentionCall
from headwise.heads.system import Routing
from headwise.models.inspect import (
    eval_mode,
    find_attentions,
    find_systems,
    observe,
    run_as_written,
)
from headwise.models.plan import system_name
from headwise.pretrained.ablate import ablated
from headwise.pretrained.gates import with_identity_gates
from headwise.pretrained.layouts import HeadLayout
from headwise.pretrained.record import capture_attention_weights, record
from headwise.report.explorer_input import ModelInput, Source, batch_input, run_input, text_input
from headwise.report.explorer_output import Outputs, pack_array
from headwise.report.text_models import check_finite, open_transformers_model
from headwise.runs.evaluate import applied_ablations
from headwise.runs.folder import distinct_names, read_model, read_recipe
from headwise.runs.names import is_transformers_model
from headwise.tasks.task import Positions
from headwise.training.console import bars, say_begin

if TYPE_CHECKING:
    import pandas as pd

Without = Literal["none", "units", "heads"]
MOST_WEIGHTS = 150_000_000  # of attention, that a browser holds
_FOLDER = Path(__file__).parent
# Letters of JSON with a meaning in HTML.
_ESCAPES = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


class ExplorerPage:
    """A page that shows the heads of models at work on one input.

    In a notebook, the value of a cell is shown as the page.

    Attributes:
        payload: the data of the page, as JSON can hold them.
    """

    def __init__(self, title: str, says: str, models: list[dict[str, Any]]) -> None:
        self.payload: dict[str, Any] = {"title": title, "says": says, "models": models}

    @property
    def removals(self) -> "pd.DataFrame":
        """A table of what the output loses without each part, the most important first.

        Its columns: `model`; `path` of the system; `part`, such as head, and its `number`; `loss`
        without it; and `cost`, how much higher that is than the loss of the whole model.
        """
        import pandas as pd

        rows = [
            {"model": model["name"], **removal, "loss": loss, "cost": loss - model["losses"][0]}
            for model in self.payload["models"]
            for removal, loss in zip(model["removals"], model["losses"][1:], strict=True)
        ]
        columns = ["model", "path", "part", "number", "loss", "cost"]
        table = pd.DataFrame(rows, columns=columns)
        return table.sort_values("cost", ascending=False, ignore_index=True)

    def save(self, path: str | Path) -> Path:
        """Writes the page to an HTML file that needs nothing beside it; returns its path."""
        write_text(Path(path), self._html())
        return Path(path)

    def _html(self) -> str:
        template, script, style = (
            (_FOLDER / f"explorer.{end}").read_text("utf-8") for end in ("html.jinja", "js", "css")
        )
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
        return environment.from_string(template).render(
            title=self.payload["title"],
            says=self.payload["says"],
            payload=Markup(json.dumps(self.payload, allow_nan=False).translate(_ESCAPES)),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            style=Markup(style),
        )

    def _repr_html_(self) -> str:
        # In a frame of its own neither styles nor scripts of page and notebook meet.
        return (
            f'<iframe srcdoc="{html.escape(self._html())}" sandbox="allow-scripts" '
            f'title="{html.escape(self.payload["title"])}" '
            f'style="width: 100%; height: 720px; border: 0"></iframe>'
        )


def explore(
    model: nn.Module,
    inputs: Any,
    text: str | None = None,
    *,
    target: str | None = None,
    without: Without = "units",
    name: str = "",
    layouts: Mapping[str, HeadLayout] | None = None,
) -> ExplorerPage:
    """Shows a model at work on one input: what its heads read, and what each of them is worth.

    Args:
        model: a model of headwise or of transformers, or any module that holds systems of headwise
            or of your own, and whose forward takes token ids, `(batch, time)`, as its first
            argument.
        inputs: a tokenizer of transformers; or, without a text, a batch of one sequence: a mapping
            with the arguments of the model's forward and, if they are known, `labels`.
        text: what the model reads. For a masked language model the tokenizer's mask stands for what
            is to be filled in; without one some tokens are hidden. For a classifier a tab stands
            between two texts.
        target: what the decoder of a model with an encoder reads; by default what it writes.
        without: what is removed, one at a time, in a forward pass each: the `"units"` of systems
            (experts, mechanisms, or heads), also all `"heads"`, or `"none"`.
        name: of the model, as the page shows it.
        layouts: where attentions of transformers have their heads, as in `headwise.gate_heads`.

    Returns:
        A page that a notebook shows; `save(path)` writes it to a file.

    Raises:
        ValueError: the text is empty, or has too many tokens for a page; the model holds no system,
            nor an attention of transformers that is known.

    Example:
        >>> import headwise as hw
        >>> from headwise.data.tokenizers import TokenizerSettings, learn_tokenizer
        >>> tokenizer = learn_tokenizer(2 * ["open the file"], TokenizerSettings(), "lines")
        >>> config = hw.CausalLMConfig(vocab_size=len(tokenizer), embed_dim=16, num_heads=2,
        ...                            ffn_dim=16, layers=1, attention="mae")
        >>> page = hw.explore(hw.CausalLM(config), tokenizer, "open the")
        >>> page.removals["part"].tolist()  # the one that matters most comes first
        ['expert', 'expert']
    """
    if text is not None:
        model_input = text_input(model, inputs, text, target)
    elif isinstance(inputs, Mapping):
        model_input = batch_input(model, inputs)
    else:
        raise ValueError("text is missing, expected what the model is to read")
    name = name or type(model).__name__
    with with_identity_gates(model, layouts):
        payload = _model_payload(name, model, model_input, without, Console(stderr=True))
    return ExplorerPage(name, model_input.text, [payload])


def explore_runs(
    folders: Sequence[Path],
    source: Source,
    changes: Sequence[str],
    without: Without,
    console: Console,
) -> ExplorerPage:
    """Shows runs, models of transformers and names on the hub side by side on one input.

    Raises:
        ValueError: one of them cannot be read, or they do not read the same input.
    """
    names, models, data = distinct_names(folders), [], set()
    for folder, name in zip(folders, names, strict=True):
        with ExitStack() as stack:
            if is_transformers_model(folder):
                if source.text is None:
                    raise ValueError(f"{folder} is no run and has no data: give a text by --text")
                model, tokenizer = open_transformers_model(folder)
                model_input = text_input(model, tokenizer, source.text, source.target)
            else:
                recipe = read_recipe(folder, changes, keys=("evaluation",))
                model = read_model(folder)
                check_finite(model, folder)
                stack.enter_context(applied_ablations(model, recipe.evaluation, console, name))
                model_input = run_input(folder, recipe, model, source, console)
                data.add((recipe.task, model_input.digest))
            if len(data) > 1:
                raise ValueError(
                    f"{name} and {names[0]} have different tasks or data, so that they cannot be "
                    f"shown side by side on one input: give runs of one task, and a --text if "
                    f"their data differ"
                )
            stack.enter_context(with_identity_gates(model))
            models.append(_model_payload(name, model, model_input, without, console))
    return ExplorerPage(" and ".join(names), model_input.text, models)


# --- a model at work ------------------------------------------------------------------------------


@torch.no_grad()
def _model_payload(
    name: str, model: nn.Module, model_input: ModelInput, without: Without, console: Console
) -> dict[str, Any]:
    """Runs a model, whole and without each part; collects what the page shows of it."""
    stacks = model_input.stacks
    longest = max(positions.shape[1] for positions in stacks.values())
    heads = sum(attention.num_heads for attention in find_attentions(model).values())
    if heads * longest**2 > MOST_WEIGHTS:
        raise ValueError(
            f"the input has {longest:,} positions, over which {heads} heads have "
            f"{heads * longest**2:,} attention weights, expected at most {MOST_WEIGHTS:,}: give a "
            f"shorter one"
        )
    removals: list[dict[str, Any]] = [
        {"path": path, "part": part, "number": number}
        for path, system in find_systems(model).items()
        for part in removable_parts(system)[: {"none": 0, "units": 1, "heads": None}[without]]
        for number in range(count_parts(system, part))
    ]
    with eval_mode(model), run_as_written():
        places = _places(model, model_input)
        outputs = Outputs(model, model_input)
        outputs.add(model(**model_input.batch))
        say_begin(console, f"{name}: {len(removals):,} parts are removed one at a time")
        with bars(console, transient=True) as progress:
            bar = progress.add_task(name, total=len(removals), figures="removed (or --remove none)")
            for removal in progress.track(removals, task_id=bar):
                with ablated(model, removal["path"], **{removal["part"]: removal["number"]}):
                    outputs.add(model(**model_input.batch))
    return {
        "name": name,
        "stacks": {stack: _stack(each, model_input.picture) for stack, each in stacks.items()},
        "places": places,
        "translation": model_input.translation,
        "removals": removals,
        **outputs.payload(),
    }


def _places(model: nn.Module, model_input: ModelInput) -> list[dict[str, Any]]:
    """Collects the weights of each attention of a model, and the decisions of its system."""
    systems_by_path = find_systems(model)
    calls: dict[str, list[tuple[bool, Tensor]]] = {path: [] for path in systems_by_path}

    def note_call(path: str, call: AttentionCall) -> None:
        if not getattr(call.attention, "is_head_gate", False):  # then only the model knows them
            parents = (parent for parent in systems_by_path if f"{path}.".startswith(f"{parent}."))
            is_cross = not call.inputs.is_self_attention
            calls[max(parents, key=len)].append((is_cross, call.weights()))

    def note_weights(path: str, weights: Tensor) -> None:
        calls[path].append((systems_by_path[path].site == "decoder_cross", weights))

    captured = capture_attention_weights(model, note_weights)
    with record(model) as routings, observe(model, note_call), captured:
        model(**model_input.batch)
    places = []
    for path, system in systems_by_path.items():
        stack = system.site.partition("_")[0]
        place = {
            "path": path,
            "system": system_name(type(system)).rpartition(":")[2],
            "site": system.site,
            "layer": system.layer,
            "stack": stack if stack in model_input.stacks else next(iter(model_input.stacks)),
            "unit": system.unit,
            **_decision(routings.get(path)),
        }
        packed = [_attention(place, *call, model_input) for call in calls[path]]
        places += [{**place, **each} for each in packed or [{"keys": None, "heads": None}]]
    return places


def _decision(routings: Sequence[Routing] | None) -> dict[str, Any]:
    """Packs the weights and the choice of units, at each position or for the whole input."""
    if not routings:
        return {"weights": None, "chosen": None}
    weights, indices = scaled(routings[-1].weights), routings[-1].indices
    weights = weights[0] if weights.dim() > 1 else weights
    return {
        # (positions or 1, units)
        "weights": pack_array(weights.view(-1, weights.size(-1)).numpy(), "float32"),
        "chosen": None if indices is None else indices[0].tolist(),
    }


def _attention(
    place: dict[str, Any], is_cross: bool, weights: Tensor, model_input: ModelInput
) -> dict[str, Any]:
    """Returns the stack of keys of one attention, and the weights of its heads."""
    heads, queries, keys = weights.shape[1:]
    positions = model_input.stacks[place["stack"]].shape[1]
    if queries != positions:
        raise ValueError(
            f"the system {place['path']!r} reads {queries} positions, expected {positions}: one "
            f"for each token of the input"
        )
    other_stacks = (stack for stack in model_input.stacks if stack != place["stack"])
    source = next(other_stacks, None) if is_cross else place["stack"]
    is_known = source is not None and model_input.stacks[source].shape[1] == keys
    attention: dict[str, Any] = {"keys": source if is_known else None}
    if is_cross and place["site"].endswith("_self"):  # of a decoder's layer as a whole
        attention["site"] = "decoder_cross"
    units = place["weights"]["shape"][1] if place["weights"] else 0
    if place["unit"] in ("branch", "mechanism") and units and heads % units == 0:
        attention["owner"] = [head * units // heads for head in range(heads)]
    return {**attention, "heads": pack_array(weights[0].float().cpu().numpy())}


def _stack(positions: Positions, picture: str) -> dict[str, Any]:
    """Returns the tokens, pixels or frames that a stack reads, as the page shows them."""
    number, tokens = positions.shape[1], positions.tokens
    ids = range(number) if tokens is None else tokens[0].tolist()
    # An embedding may have more rows than there are tokens.
    names = [positions.names.get(token, str(token)) for token in ids]
    word = {"colour": "pixel", "frame": "frame"}.get(positions.word, "token")
    stack: dict[str, Any] = {"word": word, "tokens": names}
    if positions.size is not None:
        height, width = positions.size
        stack |= {"height": height, "width": width, "first": number - height * width}
        if picture:
            stack["picture"] = picture
    return stack
