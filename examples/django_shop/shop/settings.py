"""The settings that this project needs, of those that startproject writes."""

from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "insecure: for an example"
DEBUG = True
USE_TZ = True
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS: list[str] = []
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"},
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS += ["billing"]
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
