from django.db import models


class Note(models.Model):
    """What a task under test writes: a row of its own beside the queue's."""

    text = models.CharField(max_length=200)

    def __str__(self) -> str:
        return self.text
