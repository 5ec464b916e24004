"""Django's settings for the measurements: the database that `helper.use` put into the environment, else nothing."""

import json
import os

DATABASES = json.loads(os.environ.get("BENCHMARK_DATABASES", "{}"))
if any(database["ENGINE"].endswith("mysql") for database in DATABASES.values()):
    try:
        import MySQLdb  # noqa: F401
    except ImportError:
        import pymysql

        pymysql.install_as_MySQLdb()

INSTALLED_APPS = ["django.contrib.contenttypes", "gnlqueue", "noops"]
if os.environ.get("BENCHMARK_BESIDE") == "dj-queue":
    INSTALLED_APPS.append("dj_queue")
    TASKS = {"default": {"BACKEND": "dj_queue.backend.DjQueueBackend", "QUEUES": ["default"], "OPTIONS": {}}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
SECRET_KEY = "only for measurements"
