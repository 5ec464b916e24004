"""The checkout's form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django import forms
from django.forms.boundfield import BoundField

from shop.models import Order, Product


class CheckoutForm(forms.Form):
    """Who orders, what it is paid with, and how many of each product."""

    customer = forms.CharField(label="Your name", max_length=200)
    email = forms.EmailField(label="Your e-mail address")
    card = forms.ChoiceField(label="Pay with", choices=Order.Card.choices)

    def __init__(self, *args: Any, products: Iterable[Product], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._products = {self._name(product): product for product in products}
        for name, product in self._products.items():
            self.fields[name] = forms.IntegerField(
                label=f"How many of {product.name}",
                min_value=0,
                max_value=min(product.stock, 99),
                required=False,
                disabled=not product.stock,
                widget=forms.NumberInput(attrs={"placeholder": "0"}),
            )

    def shelf(self) -> Iterator[tuple[Product, BoundField]]:
        """Yield each product with the field for its quantity."""
        for name, product in self._products.items():
            yield product, self[name]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        named = {product: cleaned.get(name) for name, product in self._products.items()}
        self.quantities = {product: quantity for product, quantity in named.items() if quantity}
        if not self.quantities and not self.errors:
            raise forms.ValidationError("Choose at least one product.")
        return cleaned

    @staticmethod
    def _name(product: Product) -> str:
        return f"quantity_{product.pk}"
