//! Tests of the memory of a slab, measured by the numbers of the operating system. They run in a
//! process of their own, because these numbers are for a whole process.

use zillion_device::{Slab, machine};

#[test]
fn freed_chunks_go_back_to_the_system() {
    const ROWS: u32 = (512 << 20) / 256;
    const TOLERANCE: i64 = 200 << 20;
    let resident = || machine::resident_memory().unwrap() as i64;
    let start = resident();
    let mut slab = Slab::<f32>::new(64).unwrap();
    for _ in 0..ROWS {
        let row = slab.alloc().unwrap();
        slab.row_mut(row)[0] = 1.0;
    }
    let full = resident() - start;
    assert!((full - (512 << 20)).abs() < TOLERANCE, "{full} bytes resident for 512 MiB of rows");
    // All rows of the upper half are freed, and all rows of the lower half except the first row.
    for row in (1..ROWS).rev() {
        slab.free(row);
    }
    assert_eq!(slab.bytes().reserved, Slab::<f32>::mapped_bytes(1, 256), "a page for one row");
    let rest = resident() - start;
    assert!(rest < TOLERANCE, "{rest} bytes stay resident");
    assert_eq!(slab.row(0)[0], 1.0);
    slab.free(0);
    assert_eq!(slab.bytes().reserved, 0);
}
