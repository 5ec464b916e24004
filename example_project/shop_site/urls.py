"""URLs of the site: the shop, and the admin."""

from django.contrib import admin
from django.urls import include, path

admin.site.site_header = admin.site.site_title = "Kettle & Leaf"
admin.site.index_title = "Behind the counter"

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("shop.urls")),
]
