//! The gate: the judgement on a new version of an online model before it is promoted.
//!
//! Labels can be poisoned, and then the newest rows are poisoned too. So a gate has three legs:
//! 1. *Progressive*: the paired difference of AUC between the live model and the promoted version
//!    on the newest closed windows ([`crate::validation`]).
//! 2. *Anchor*: the same difference on a set of older rows, which promoted versions refresh.
//! 3. *Inputs*: bands around the figures of the data and of the update: click rate, calibration,
//!    missing values, new keys, drift of scores, values that are not finite, size of the update.
//!
//! If the labels are flipped, the live model is better than the promoted version on the newest
//! window, because both are judged by flipped labels, and worse on the anchor. A real change is
//! better on the window and not worse on the anchor. The bands are wide, because ordinary changes
//! move inputs too.
//!
//! # Invariants
//! * No clock is read. A verdict is a function of the evidence, the state and the settings.
//! * A row enters the anchor only if a version was promoted at least `anchor_delay_seconds` of
//!   event time after the row, or if versions were held `hold_seconds` longer than this.

mod anchor;
mod bands;
mod error;
mod evidence;
mod judging;
mod reference;
mod settings;
#[cfg(test)]
mod tests;
mod verdict;

pub use anchor::{Admitted, AnchorRows, Staged};
pub use error::GateError;
pub use evidence::{AnchorScores, Evidence, Inputs};
pub use judging::{Gate, GateState};
pub use settings::{Band, Bands, GateSettings};
pub use verdict::{Check, Leg, Outcome, Verdict};
