//! `zillion data`.

use anyhow::Result;

use super::{data_convert, data_history, data_inspect, data_next_item, data_synth};
use crate::args::{Data, DataArgs};

pub(crate) fn run(args: &DataArgs) -> Result<()> {
    match &args.what {
        Data::Convert(args) => data_convert::run(args),
        Data::History(args) => data_history::run(args),
        Data::Inspect(args) => data_inspect::run(args),
        Data::NextItem(args) => data_next_item::run(args),
        Data::Synth(args) => data_synth::run(args),
    }
}
