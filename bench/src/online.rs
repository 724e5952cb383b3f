//! The benchmarks of online training: `zillion bench online`.
//!
//! `movielens` replays ratings by their times. Each other benchmark has a source of events in this
//! process, which writes files into a followed folder, and `zillion online` in a process of its
//! own. So the figures are those of the command, with its checkpoints and versions.

mod catchup;
mod contents;
mod decoders;
mod events;
mod freshness;
mod ingest;
mod job;
mod joiner;
mod kills;
mod movielens;
mod run;
mod source;
mod writer;

use anyhow::Result;

use crate::args::{BenchOnlineArgs, OnlineFigure};

pub(crate) fn run(args: &BenchOnlineArgs, is_json: bool) -> Result<()> {
    match &args.figure {
        OnlineFigure::Freshness(args) => freshness::run(args, is_json),
        OnlineFigure::Ingest(args) => ingest::run(args, is_json),
        OnlineFigure::Catchup(args) => catchup::run(args, is_json),
        OnlineFigure::Movielens(args) => movielens::run(args, is_json),
        OnlineFigure::Kills(args) => kills::run(args, is_json),
        OnlineFigure::Joiner(args) => joiner::run(args, is_json),
    }
}
