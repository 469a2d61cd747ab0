"""The check of the ablations that a system declares."""

from headwise.heads.system import System
from headwise.models.ablation import ablation_of, ablation_options
from headwise.testing.outputs import expect_same_in_steps
from headwise.testing.subject import BATCH, KEYS, TIME, Subject, close, random_input


def check_ablations(subject: Subject) -> None:
    ablations = subject.system.ablations
    _expect_ranges(subject)
    changing: dict[str, bool] = {}
    for name in ablations:
        # Random, since what is learned may start as what the ablation puts in its place.
        module = subject.build()
        x, memory = random_input(BATCH, TIME), random_input(BATCH, KEYS)
        before = subject.repeatable(module, x, memory).output
        if not _ablate(subject, module, name):
            continue
        after = subject.repeatable(module, x, memory).output
        changing[name] = after.shape != before.shape or not close(after, before)
        again = subject.repeatable(module, x, memory, seed=2).output
        subject.expect(
            close(again, after) or not after.isfinite().all(),
            f"the ablation {name} gives another output at each call",
            "draw in the ablation's function, by a generator with a seed, and not in forward",
        )
        _expect_evaluation_alone(subject, name)
        if subject.decodes:
            expect_same_in_steps(subject, module, f"under the ablation {name}, ")
    subject.expect(
        not changing or any(changing.values()),
        f"no ablation changes an output in evaluation, of {', '.join(changing)}",
        "forward has to look at self.ablation, which is what the ablation's function returns",
    )


def _expect_ranges(subject: Subject) -> None:
    """What `ablation_ranges` declares has to be there, and has to fit."""
    module = subject.build()
    ranges = module.ablation_ranges()
    for name, function in subject.system.ablations.items():
        given = dict(subject.ablation_options.get(name, {}))
        for option in ablation_options(function):
            subject.expect(
                option in ranges or name not in (f"without-{option}", f"only-{option}"),
                f"the ablation {name} has the option {option}, which ablation_ranges() lacks",
                f"return its values there: {{{option!r}: range(...)}}",
            )
            for value in ranges.get(option, range(0)):
                try:
                    ablation_of(module, name, {**given, option: value})
                except ValueError as error:
                    subject.expect(
                        value == 0 and len(ranges[option]) == 1,
                        f"ablation_ranges() has {option} = {value}, but the ablation {name} with "
                        f"it raises ValueError: {error}",
                        "return the values that fit the module's sizes",
                    )


def _expect_evaluation_alone(subject: Subject, name: str) -> None:
    x, memory = random_input(BATCH, TIME), random_input(BATCH, KEYS)
    for train in (False, True):
        # In evaluation as it starts: of random parameters, a sum that is to be 1 may be 0. In
        # training not so, where it may start as what the ablation puts in its place.
        module = subject.build(train=train, randomize=train)
        before = subject.repeatable(module, x, memory).output
        _ablate(subject, module, name)
        after = subject.repeatable(module, x, memory).output
        subject.expect(
            train or (after.shape == before.shape and bool(after.isfinite().all())),
            f"the ablation {name} gives outputs of another shape, or that are not finite",
            "return what forward can put in the place of the learned decision",
        )
        subject.expect(
            not train or not before.isfinite().all() or close(after, before),
            f"the ablation {name} changes training",
            "look at self.ablation in evaluation only: `if not self.training`",
        )


def _ablate(subject: Subject, module: System, name: str) -> bool:
    """Put an ablation in force; False if it refuses a system that is built like this one."""
    function = subject.system.ablations[name]
    options = dict(subject.ablation_options.get(name, {}))
    for key, parameter in ablation_options(function).items():
        if key not in options and parameter.default is parameter.empty:
            options[key] = max(module.ablation_ranges().get(key, ()), default=1)
    try:
        module.ablation = ablation_of(module, name, options)
    except ValueError as error:
        # Without options, what does not fit is the system: it was built without the decision.
        subject.expect(
            not options,
            f"the ablation {name} with {options} raises ValueError: {error}",
            f"give options that fit: check_system(..., ablation_options={{{name!r}: ...}})",
        )
        return False
    return True
