"""Settings for Django's own tests, with what shop.leaf does after fixtures."""

import os

import shop.leaf  # noqa: F401


def database(name):
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": os.environ["PGUSER"],
        "PASSWORD": os.environ["PGPASSWORD"],
        "HOST": os.environ["PGHOST"],
        "PORT": os.environ["PGPORT"],
        # Has the extension.
        "TEST": {"TEMPLATE": "suite"},
    }


DATABASES = {"default": database("first"), "other": database("second")}
SECRET_KEY = "django_tests_secret_key"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
