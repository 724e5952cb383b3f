//! `zillion bench`.

use anyhow::Result;

use super::{
    bench_capacity, bench_cold_start, bench_delta, bench_embedding, bench_frappe, bench_hot_load,
    bench_reader, bench_registry, bench_serve, bench_spill, bench_stalls, bench_train, bench_wire,
};
use crate::args::{Bench, BenchArgs};

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    match &args.what {
        Bench::Embedding(args) => bench_embedding::run(args),
        Bench::Spill(args) => bench_spill::run(args),
        Bench::Stalls(args) => bench_stalls::run(args),
        Bench::Capacity(args) => bench_capacity::run(args),
        Bench::Delta(args) => bench_delta::run(args),
        Bench::Reader(args) => bench_reader::run(args),
        Bench::Serve(args) => bench_serve::run(args),
        Bench::Train(args) => bench_train::run(args),
        Bench::HotLoad(args) => bench_hot_load::run(args),
        Bench::ColdStart(args) => bench_cold_start::run(args),
        Bench::Wire(args) => bench_wire::run(args),
        Bench::Registry(args) => bench_registry::run(args),
        Bench::Frappe(args) => bench_frappe::run(args),
    }
}
