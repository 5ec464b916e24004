from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('gnlqueue', '0006_entry_function'),
    ]

    operations = [
        migrations.AddField(
            model_name='runjournalentry',
            name='instead_of',
            field=models.JSONField(help_text='Entries that were done, look like it, and were not asked for when it began.', null=True),
        ),
    ]
