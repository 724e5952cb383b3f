//! Tests of resets: a partition goes on at another message while it is fetched.

use super::*;
use crate::file::FileHistory;

#[test]
fn a_partition_goes_back_and_ahead() {
    let cluster = Cluster::new(1, 2);
    cluster.put(0, &["a", "b", "c"]);
    cluster.put(1, &["x"]);
    let mut source = cluster.open();
    assert_eq!(take(&mut source, 4).unwrap().len(), 4);
    let partition = Partition { stream: 0, number: 0 };
    assert_eq!(source.find_offset(partition, Place::Start).unwrap(), Some(0));
    assert_eq!(source.find_offset(partition, Place::End).unwrap(), Some(3));
    let reset = |to| Decision::Reset { partition, to, files: FileHistory::default() };
    source.adopt(&reset(1)).unwrap();
    assert_eq!(of_partition(&take(&mut source, 2).unwrap(), 0), [(1, "b"), (2, "c")]);
    source.adopt(&reset(0)).unwrap();
    source.adopt(&reset(3)).unwrap();
    cluster.put(0, &["d"]);
    assert_eq!(of_partition(&take(&mut source, 1).unwrap(), 0), [(3, "d")]);
    let unknown = Partition { stream: 0, number: 9 };
    let reset = Decision::Reset { partition: unknown, to: 0, files: FileHistory::default() };
    assert!(source.adopt(&reset).unwrap_err().to_string().contains("is unknown"));
}
