//! Tests of the public interface of the reader, from files to batches. Each module tests one
//! behaviour.

mod agreement;
mod bad_input;
mod classes;
mod damage;
mod event_times;
mod fixture;
mod groups;
mod left_out;
mod lines;
mod messages;
mod order;
mod parquet_types;
mod passes;
mod raw;
mod real_data;
mod sides;
mod stream;
mod text;
mod times;
