"""The largest sizes that are built: a slip of the finger is an error before memory is taken for it.

They are beyond every model that has been trained, so that nothing has to raise them.
"""

from math import inf

MOST_PARAMETERS = 10**12  # of a module or a model; four terabytes in float32
MOST_LAYERS = 10_000  # of a stack
MOST_HEADS = 4096  # of an attention
MOST_EXPERTS = 100_000  # of a gate or a router


def check_parameters(parameters: int, **sizes: int) -> None:
    """Raises `ValueError` if sizes give more than a trillion parameters.

    Args:
        parameters: how many they give, or a lower bound of that.
        sizes: the sizes, for the message.

    >>> check_parameters(512 * 512, embed_dim=512)
    >>> check_parameters(10**14, embed_dim=10**7)
    Traceback (most recent call last):
    ...
    ValueError: embed_dim = 10,000,000 makes at least 100,000,000,000,000 parameters, expected at \
most 1,000,000,000,000: choose smaller sizes
    """
    if parameters > MOST_PARAMETERS:
        named = ", ".join(f"{name} = {written(size)}" for name, size in sizes.items())
        makes = "makes at least" if len(sizes) == 1 else "make at least"
        raise ValueError(
            f"{named} {makes} {written(parameters)} parameters, expected at most "
            f"{MOST_PARAMETERS:,}: choose smaller sizes"
        )


def check_number(name: str, number: int, most: int) -> None:
    """Raises `ValueError` if there is more of something than is built.

    >>> check_number("num_heads", 1_000_000, MOST_HEADS)
    Traceback (most recent call last):
    ...
    ValueError: num_heads is 1,000,000, expected at most 4,096
    """
    if number > most:
        raise ValueError(f"{name} is {written(number)}, expected at most {most:,}")


def written(number: int) -> str:
    """Returns a number for a message, which has no place for thirty digits.

    >>> written(225_792_840), written(4 * 10**30)
    ('225,792,840', '10^30')
    """
    return f"{number:,}" if number < 10**18 else f"10^{len(str(number)) - 1}"


def check_coefficient(name: str, value: float) -> None:
    """Raises `ValueError` unless a loss can be multiplied by a number: it is finite and from 0."""
    if not 0.0 <= value < inf:
        raise ValueError(f"{name} is {value}, expected a finite number from 0; 0 leaves it out")
