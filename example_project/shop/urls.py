"""URLs of the shop."""

from django.urls import path

from shop import views

app_name = "shop"
urlpatterns = [
    path("", views.storefront, name="storefront"),
    path("checkout/", views.checkout, name="checkout"),
    path("orders/<slug:reference>/", views.order_page, name="order"),
    path("orders/<slug:reference>/invoice/", views.invoice, name="invoice"),
]
