from .errors import RecipeError as RecipeError
from .file import RecipeFile as RecipeFile
from .file import differences as differences
from .file import load_recipe as load_recipe
from .file import to_yaml as to_yaml
from .shipped import shipped_recipes as shipped_recipes
