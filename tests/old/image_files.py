"""Small image files."""

import numpy as np
from PIL import Image


def noise(number, seed=0, height=4, width=4):
    return np.random.default_rng(seed).integers(0, 256, (number, height, width, 3), np.uint8)


def write_folder(folder, images, classes=("cat", "dog")):
    for number, image in enumerate(images):
        path = folder / classes[number % len(classes)] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return folder


def rows(images):
    return {image.tobytes() for image in images}
