from django.db import models


class Invoice(models.Model):
    customer = models.EmailField()
    sent = models.BooleanField(default=False)
