"""Settings of the example shop. What gnlqueue asks of a project is marked with "gnlqueue:"."""

import os
from datetime import timedelta
from pathlib import Path

import django

from shop_site.databases import database

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = BASE_DIR / "var"  # all that the shop writes; delete it to start afresh
VAR_DIR.mkdir(exist_ok=True)

SECRET_KEY = "for this example only"
DEBUG = True
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rangefilter",  # gnlqueue: the admin's date filters
    "gnlqueue",  # gnlqueue: finds the tasks.py of every app
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "shop_site.urls"
WSGI_APPLICATION = "shop_site.wsgi.application"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

USE_TZ = True  # gnlqueue: its clock is the database's, in UTC
TIME_ZONE = "UTC"

# gnlqueue: jobs live in the database that the orders live in. Try the shop on a server with, for instance,
# SHOP_DATABASE_URL=postgresql://user:password@localhost/shop, or mysql://… for MySQL and MariaDB.
DATABASES = {"default": database(os.environ.get("SHOP_DATABASE_URL") or f"sqlite:///{VAR_DIR / 'db.sqlite3'}")}

# gnlqueue: every key is optional, and the defaults are right for a shop.
GNLQUEUE = {}

# Mail goes into files, where the demo counts it.
MAIL_DIR = VAR_DIR / "mail"
MAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": MAIL_BACKEND, "OPTIONS": {"file_path": str(MAIL_DIR)}}}
else:
    EMAIL_BACKEND = MAIL_BACKEND
    EMAIL_FILE_PATH = str(MAIL_DIR)
DEFAULT_FROM_EMAIL = "Kettle & Leaf <shop@example.com>"

# The payment gateway is another company's server; its ledger is kept here only so that the demo can count its charges.
GATEWAY_URL = os.environ.get("SHOP_GATEWAY_URL", "http://127.0.0.1:8402")
GATEWAY_LEDGER = VAR_DIR / "gateway" / "ledger.jsonl"

PACKING_TIME = timedelta(seconds=1)  # a day, in a shop that does not have to show results soon

INVOICE_DIR = VAR_DIR / "invoices"
WAREHOUSE_DIR = VAR_DIR / "warehouse"
REPORT_DIR = VAR_DIR / "reports"
