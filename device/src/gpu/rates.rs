//! Measurements of a device: floors, and the rates of products.
