//! `zillion bench`.

use anyhow::Result;

use super::{bench_embedding, bench_frappe, bench_reader, bench_train};
use crate::args::{Bench, BenchArgs};

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    match &args.what {
        Bench::Embedding(args) => bench_embedding::run(args),
        Bench::Reader(args) => bench_reader::run(args),
        Bench::Train(args) => bench_train::run(args),
        Bench::Frappe(args) => bench_frappe::run(args),
    }
}
