//! `zillion data`: inspects, converts, splits and generates data.

mod convert;
mod history;
mod inspect;
mod next_item;
pub(super) mod split;
pub(super) mod synth;

use anyhow::Result;

use crate::args::Data;

pub(crate) fn run(command: &Data) -> Result<()> {
    match command {
        Data::Convert(args) => convert::run(args),
        Data::History(args) => history::run(args),
        Data::Inspect(args) => inspect::run(args),
        Data::NextItem(args) => next_item::run(args),
        Data::Split(args) => split::run(args),
        Data::Synth(args) => synth::run(args),
    }
}
