//! `zillion data`: inspects, converts, rewrites, splits and generates data.

mod convert;
mod counters;
mod explode;
mod filter;
mod history;
mod inspect;
mod next_item;
mod row_files;
pub(super) mod split;
pub(super) mod synth;

use anyhow::Result;

use crate::args::Data;

pub(crate) fn run(command: &Data) -> Result<()> {
    match command {
        Data::Convert(args) => convert::run(args),
        Data::Counters(args) => counters::run(args),
        Data::Explode(args) => explode::run(args),
        Data::Filter(args) => filter::run(args),
        Data::History(args) => history::run(args),
        Data::Inspect(args) => inspect::run(args),
        Data::NextItem(args) => next_item::run(args),
        Data::Split(args) => split::run(args),
        Data::Synth(args) => synth::run(args),
    }
}
