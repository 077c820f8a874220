from django.db import migrations

from quorlock.fencing import FenceTable


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]
    operations = [
        migrations.RunSQL(
            FenceTable("format").create_statement().text,
            reverse_sql="DROP TABLE quorlock_fences",
        ),
    ]
