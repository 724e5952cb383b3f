//! The priority of threads. Background work gets a low priority, so that threads that answer
//! requests run first.

/// The nice value of a thread with lowered priority. If another thread of normal priority wants the
/// same processor, the scheduler gives a thread with this value about a tenth of it.
const NICE: libc::c_int = 10;

/// Lowers the priority of the calling thread only. Returns `false` if the system refuses. The
/// thread then works with its old priority.
pub fn lower_thread_priority() -> bool {
    // SAFETY: the call takes three numbers and no pointer, so that it cannot touch memory. Linux
    // applies `PRIO_PROCESS` with the id 0 to the calling thread alone, and a higher nice value
    // needs no privilege.
    #[cfg(target_os = "linux")]
    let status = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    // On other systems, the call would lower the priority of the whole process.
    #[cfg(not(target_os = "linux"))]
    let status = -NICE;
    status == 0
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Reads the nice value of the calling thread.
    fn nice() -> i64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        fields.split_whitespace().nth(16).unwrap().parse().unwrap()
    }

    #[test]
    fn only_the_calling_thread_is_lowered() {
        let before = nice();
        let lowered = std::thread::spawn(|| (lower_thread_priority(), nice())).join().unwrap();
        assert_eq!(lowered, (true, i64::from(NICE)));
        assert_eq!(nice(), before);
    }
}
