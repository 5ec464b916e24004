from django.apps import AppConfig

from tests.app import faults


class TestAppConfig(AppConfig):
    name = "tests.app"
    label = "testapp"

    def ready(self) -> None:
        faults.install()
