//! Quantities of the API as numbers, and back.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
pub use keelson_kit::quantity::{Amount, BadQuantity};

pub fn amount_of(quantity: &Quantity) -> Result<Amount, BadQuantity> {
    quantity.0.parse()
}

pub fn to_quantity(amount: Amount) -> Quantity {
    Quantity(amount.to_string())
}
