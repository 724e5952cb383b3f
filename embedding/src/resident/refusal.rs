//! The settings with which rows cannot live on a device.

use zillion_rows::part::ALL_SLOTS;

use crate::set::TableSet;
use crate::shape::TableShape;

/// Returns the setting with which the rows of a set cannot be on a device, and the reason. Returns
/// `None` if they can.
pub(super) fn refusal(tables: &TableSet) -> Option<String> {
    if tables.owned.iter().any(|owned| *owned != ALL_SLOTS) {
        return Some("the tables hold only a part of the slots".to_owned());
    }
    tables.shapes.iter().find_map(|shape| of_table(shape))
}

/// Returns the setting with which a device can have a cache of rows but not all of them, and the
/// reason. Returns `None` if it can have all rows.
pub(super) fn cache_reason(tables: &TableSet) -> Option<String> {
    if tables.borrows {
        return Some("servers have the other rows (`[ps]`)".to_owned());
    }
    if tables.spilling.is_some() {
        return Some("`run.spill` keeps rows on disk".to_owned());
    }
    let evicts = |shape: &&std::sync::Arc<TableShape>| !shape.spec.eviction.is_never();
    let shape = tables.shapes.iter().find(evicts)?;
    Some(format!("`tables.{}.eviction` is set, and the host evicts rows", shape.spec.name))
}

fn of_table(shape: &TableShape) -> Option<String> {
    let spec = &shape.spec;
    let setting = if spec.grow.is_some() {
        ("grow", "rows that grow are on the host")
    } else if shape.priority.is_some_and(|priority| priority.needs_weights()) {
        ("eviction", "the weights of rows decide, which the host does not have in each step")
    } else {
        return None;
    };
    let (key, reason) = setting;
    Some(format!("`tables.{}.{key}` is set, and {reason}", spec.name))
}
