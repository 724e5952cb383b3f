//! scratch measurement
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;
use zillion_device::direct_io::*;
use zillion_device::Files;
fn main() {
    let path = std::path::PathBuf::from(std::env::args().nth(1).unwrap());
    let file = DirectFile::create(&Files::new(), &path).unwrap();
    let total = 1u64 << 30;
    let mut buf = pages(1024);
    bytes_mut(&mut buf).iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7919 >> 3) as u8);
    let t = Instant::now();
    for i in 0..total / (4 << 20) { file.write(i * (4 << 20), &buf).unwrap(); }
    println!("direct {} write {:.0} MB/s", file.is_direct(), total as f64 / 1e6 / t.elapsed().as_secs_f64());
    let file = Arc::new(file);
    for kib in [4u64, 8, 16, 32, 64] {
        for threads in [4usize, 16, 32, 64] {
            let readers = Readers::new(NonZeroUsize::new(threads).unwrap()).unwrap();
            let piece = (kib * 1024) as usize;
            let n = 20_000u64.min(600_000_000 / (kib * 1024));
            let mut x = 12345u64;
            let mut offsets: Vec<u64> = (0..n).map(|_| { x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); (x >> 20) % (total / (kib * 1024)) * kib * 1024 }).collect();
            offsets.sort(); offsets.dedup();
            let before = file.transfers();
            let t = Instant::now();
            let p = readers.start(&file, &offsets, piece).wait().unwrap();
            let s = t.elapsed().as_secs_f64();
            let d = file.transfers().reads - before.reads;
            println!("{kib} KiB, {threads} threads: {:.0} reads/s, {:.0} MB/s pieces {} kept {}", d as f64 / s, (file.transfers().read_bytes - before.read_bytes) as f64 / 1e6 / s, offsets.len(), p.bytes());
        }
    }
}
