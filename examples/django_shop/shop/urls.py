from django.urls import path

from billing.views import charge

urlpatterns = [path("invoices/<int:number>/charge", charge)]
