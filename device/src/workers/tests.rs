//! Tests of the guarantees of a pool. They use pools of several sizes and many repetitions, because
//! an error may appear only in a rare order of events.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};

use super::{Activity, Workers};

fn pool(threads: usize) -> Workers {
    Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

#[test]
fn every_index_runs_exactly_once() {
    for threads in [1, 2, 3, 8] {
        let workers = pool(threads);
        assert_eq!(workers.threads(), threads);
        for count in (0..40).chain([100, 1000, 10_007]) {
            let runs: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            workers.for_each(count, |index| {
                runs[index].fetch_add(1, SeqCst);
            });
            assert!(runs.iter().all(|runs| runs.load(SeqCst) == 1), "{threads} threads, {count}");
        }
    }
}

#[test]
fn many_short_phases_follow_each_other() {
    for threads in [2, 4] {
        let workers = pool(threads);
        let mut cells = [0u64; 5];
        for phase in 0..30_000 {
            workers.for_each_mut(&mut cells, |index, cell| {
                assert_eq!(*cell, phase * (index as u64 + 1));
                *cell += index as u64 + 1;
            });
        }
    }
}

#[test]
fn a_phase_wakes_threads_that_sleep() {
    let workers = pool(2);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(2));
        // Both indices must run at the same time, because each waits for the other.
        let both = Barrier::new(2);
        workers.for_each(2, |_| {
            both.wait();
        });
    }
}

#[test]
fn slices_are_cut_and_handed_out() {
    for threads in [1, 3] {
        let workers = pool(threads);
        for length in [0usize, 1, 6, 7, 8, 1000] {
            let mut items = vec![0usize; length];
            workers.for_each_block(&mut items, 7, |block, items| {
                for (offset, item) in items.iter_mut().enumerate() {
                    *item += block * 7 + offset;
                }
            });
            assert!(items.iter().enumerate().all(|(index, item)| index == *item));
        }
        let mut items = vec![0usize; 10];
        workers.for_each_part(&mut items, &[0, 3, 3, 9, 10], |part, items| items.fill(part));
        assert_eq!(items, [0, 0, 0, 2, 2, 2, 2, 2, 2, 3]);
        assert_eq!(workers.map(4, |index| index * index), [0, 1, 4, 9]);
        assert_eq!(workers.map(0, |index| index), [0usize; 0]);
    }
}

#[test]
fn bad_cuts_are_refused() {
    let workers = pool(2);
    for offsets in [&[][..], &[0, 5], &[1, 10], &[0, 7, 6, 10], &[0, 11]] {
        let cut = || workers.for_each_part(&mut [0u8; 10], offsets, |_, _| ());
        assert!(catch_unwind(AssertUnwindSafe(cut)).is_err(), "{offsets:?}");
    }
}

#[test]
fn results_of_a_phase_are_visible_after_it() {
    let workers = pool(4);
    for round in 0..2_000usize {
        let mut items = vec![0usize; 64];
        workers.for_each_mut(&mut items, |index, item| *item = round ^ index);
        assert!(items.iter().enumerate().all(|(index, item)| *item == round ^ index));
    }
}

#[test]
fn phases_inside_of_phases_end() {
    for threads in [1, 2, 4] {
        let workers = pool(threads);
        for _ in 0..200 {
            let leaves = AtomicUsize::new(0);
            workers.for_each(4, |_| {
                workers.for_each(3, |_| {
                    workers.for_each(2, |_| {
                        leaves.fetch_add(1, SeqCst);
                    });
                });
            });
            assert_eq!(leaves.load(SeqCst), 24);
        }
    }
}

#[test]
fn two_functions_run_at_once_and_start_phases() {
    for threads in [1, 2, 3] {
        let workers = pool(threads);
        let both = Barrier::new(threads.min(2));
        let (mut squares, mut sum) = (vec![0; 1000], 0);
        let (first, second) = workers.join(
            || {
                both.wait();
                workers.for_each_mut(&mut squares, |i, square| *square = i * i);
                "squares"
            },
            || {
                both.wait();
                sum = workers.map(100, |i| i).iter().sum();
                vec![sum]
            },
        );
        assert_eq!((first, second), ("squares", vec![4950]));
        assert_eq!((squares[999], sum), (998_001, 4950));
    }
}

#[test]
fn a_panic_of_one_joined_function_continues_after_both() {
    for threads in [1, 2] {
        let workers = pool(threads);
        let ended = AtomicBool::new(false);
        let first = || {
            std::thread::sleep(Duration::from_millis(2));
            ended.store(true, SeqCst);
        };
        let caught = catch_unwind(AssertUnwindSafe(|| {
            workers.join(first, || panic!("the second thing"));
        }));
        let panic = *caught.unwrap_err().downcast::<&str>().unwrap();
        assert_eq!(panic, "the second thing");
        assert!(ended.load(SeqCst), "the first had been begun");
        assert_eq!(workers.join(|| 1, || 2), (1, 2), "the pool lives on");
    }
}

#[test]
fn several_threads_start_phases_at_once() {
    let workers = pool(3);
    std::thread::scope(|scope| {
        for caller in 0..4u64 {
            let workers = &workers;
            scope.spawn(move || {
                for round in 0..2_000 {
                    let mut items = [caller; 9];
                    workers.for_each_mut(&mut items, |index, item| *item += round + index as u64);
                    for (index, item) in items.iter().enumerate() {
                        assert_eq!(*item, caller + round + index as u64);
                    }
                }
            });
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    for threads in [1, 2, 4] {
        let workers = pool(threads);
        for round in 0..300usize {
            let running = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                workers.for_each(50, |index| {
                    running.fetch_add(1, SeqCst);
                    let ended = Ended(&running);
                    if index == round % 50 {
                        std::panic::resume_unwind(Box::new("from the task"));
                    }
                    drop(ended);
                });
            }));
            let payload = outcome.unwrap_err();
            assert_eq!(payload.downcast_ref::<&str>(), Some(&"from the task"));
            // When the caller continues, no index of the phase is still running.
            assert_eq!(running.load(SeqCst), 0);
            let sum = AtomicUsize::new(0);
            workers.for_each(10, |index| {
                sum.fetch_add(index, SeqCst);
            });
            assert_eq!(sum.load(SeqCst), 45);
        }
    }

    struct Ended<'a>(&'a AtomicUsize);
    impl Drop for Ended<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }
}

#[test]
fn panics_in_all_tasks_at_once_are_one_panic() {
    let workers = pool(4);
    for _ in 0..200 {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            workers.for_each(64, |index| std::panic::resume_unwind(Box::new(index)));
        }));
        assert!(outcome.unwrap_err().downcast_ref::<usize>().is_some());
    }
    assert_eq!(workers.map(3, |index| index), [0, 1, 2]);
}

#[test]
fn tasks_give_their_results() {
    for threads in [1, 2, 4] {
        let workers = pool(threads);
        for round in 0..500u64 {
            let tasks: Vec<_> =
                (0..7).map(|number| workers.spawn(move || number * round)).collect();
            let results: Vec<u64> = tasks.into_iter().map(|task| task.join()).collect();
            assert_eq!(results, (0..7).map(|number| number * round).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_pool_of_one_runs_a_task_when_it_is_joined() {
    let workers = pool(1);
    let here = std::thread::current().id();
    let task = workers.spawn(|| std::thread::current().id());
    std::thread::sleep(Duration::from_millis(5));
    assert!(!task.is_done());
    assert_eq!(task.join(), here);
    assert!(workers.shared.lock().jobs.is_empty());
}

#[test]
fn a_task_runs_on_a_named_worker_and_reports_its_end() {
    let workers = pool(2);
    let task = workers.spawn(|| std::thread::current().name().map(str::to_owned));
    let start = Instant::now();
    while !task.is_done() {
        assert!(start.elapsed() < Duration::from_secs(20), "nobody ran the task");
        std::thread::yield_now();
    }
    assert_eq!(task.join().as_deref(), Some("zillion-worker-1"));
}

#[test]
fn the_panic_of_a_task_reaches_the_joining_thread() {
    for threads in [1, 2] {
        let workers = pool(threads);
        for _ in 0..50 {
            let task = workers.spawn(|| -> u32 { std::panic::resume_unwind(Box::new(7u32)) });
            let payload = catch_unwind(AssertUnwindSafe(|| task.join())).unwrap_err();
            assert_eq!(payload.downcast_ref::<u32>(), Some(&7));
        }
        assert_eq!(workers.spawn(|| 5).join(), 5);
    }
}

#[test]
fn a_dropped_task_is_cancelled_if_it_has_not_begun() {
    let workers = pool(2);
    let (release, hold) = mpsc::channel::<()>();
    let (begun, wait_begun) = mpsc::channel();
    let blocker = workers.spawn(move || {
        begun.send(()).unwrap();
        hold.recv().unwrap();
    });
    wait_begun.recv().unwrap();
    let ran = Arc::new(AtomicBool::new(false));
    let witness = ran.clone();
    drop(workers.spawn(move || witness.store(true, SeqCst)));
    assert!(workers.shared.lock().jobs.is_empty());
    // The closure itself is dropped, with its contents.
    assert_eq!(Arc::strong_count(&ran), 1);
    release.send(()).unwrap();
    blocker.join();
    drop(workers);
    assert!(!ran.load(SeqCst));
}

#[test]
fn a_cancelled_task_does_not_run_any_more() {
    // No thread begins this task.
    let (began, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = began.clone();
    pool(1).spawn(move || counted.fetch_add(1, SeqCst)).cancel();
    assert_eq!(began.load(SeqCst), 0);
    // A task that has begun is waited for.
    let workers = pool(2);
    let (counted, ended) = (began.clone(), done.clone());
    let task = workers.spawn(move || {
        counted.fetch_add(1, SeqCst);
        std::thread::sleep(Duration::from_millis(30));
        ended.fetch_add(1, SeqCst);
    });
    while began.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    task.cancel();
    assert_eq!(done.load(SeqCst), 1);
}

#[test]
fn phases_go_before_tasks() {
    let workers = pool(2);
    let (release, hold) = mpsc::channel::<()>();
    let (begun, wait_begun) = mpsc::channel();
    let blocker = workers.spawn(move || {
        begun.send(()).unwrap();
        hold.recv().unwrap();
    });
    wait_begun.recv().unwrap();
    // The only worker is busy. First a task is queued, and then a phase opens. The worker becomes
    // free inside the phase. Then it must take the second index of the phase before the task.
    let order = Arc::new(Mutex::new(Vec::new()));
    let of_task = order.clone();
    let task = workers.spawn(move || of_task.lock().unwrap().push("task"));
    let both = Barrier::new(2);
    let released = AtomicBool::new(false);
    workers.for_each(2, |_| {
        if !released.swap(true, SeqCst) {
            release.send(()).unwrap();
        }
        order.lock().unwrap().push("phase");
        both.wait();
    });
    task.join();
    blocker.join();
    assert_eq!(*order.lock().unwrap(), ["phase", "phase", "task"]);
}

#[test]
fn tasks_may_start_phases_and_phases_may_join_tasks() {
    for threads in [1, 2, 4] {
        let workers = Arc::new(pool(threads));
        for _ in 0..100 {
            let inner = workers.clone();
            let task =
                workers.spawn(move || inner.map(5, |index| index).into_iter().sum::<usize>());
            let tasks: Mutex<Vec<_>> =
                Mutex::new((0..6usize).map(|number| workers.spawn(move || number)).collect());
            let sum = AtomicUsize::new(0);
            workers.for_each(6, |_| {
                let task = tasks.lock().unwrap().pop().unwrap();
                sum.fetch_add(task.join(), SeqCst);
            });
            assert_eq!((task.join(), sum.load(SeqCst)), (10, 15));
        }
    }
}

#[test]
fn a_task_that_outlives_its_pool_still_runs() {
    let workers = pool(2);
    let (release, hold) = mpsc::channel::<()>();
    let (begun, wait_begun) = mpsc::channel();
    let running = workers.spawn(move || {
        begun.send(()).unwrap();
        hold.recv().unwrap();
        1
    });
    wait_begun.recv().unwrap();
    let waiting = workers.spawn(|| 2);
    release.send(()).unwrap();
    drop(workers);
    assert!(running.is_done());
    assert_eq!((running.join(), waiting.join()), (1, 2));
}

#[test]
fn a_task_may_own_the_last_reference_to_its_pool() {
    for _ in 0..100 {
        let workers = Arc::new(pool(3));
        let (release, hold) = mpsc::channel::<()>();
        let (ended, wait_ended) = mpsc::channel();
        let inner = workers.clone();
        let task = workers.spawn(move || {
            hold.recv().unwrap();
            drop(inner);
            ended.send(()).unwrap();
        });
        drop(workers);
        release.send(()).unwrap();
        wait_ended.recv_timeout(Duration::from_secs(20)).unwrap();
        task.join();
    }
}

#[test]
fn activities_are_recorded_while_recording_is_on() {
    let workers = pool(3);
    workers.for_each(20, |_| ());
    assert!(workers.take_record().is_empty());
    workers.record(true);
    let begun = Instant::now();
    workers.for_each(20, |_| std::thread::yield_now());
    let here = std::thread::current().id();
    let known: Vec<_> = workers.names().map(|(id, _)| id).chain([here]).collect();
    let record = workers.take_record();
    assert!(record.iter().any(|s| s.thread == here && s.activity == Activity::Phase));
    for stretch in &record {
        assert!(begun <= stretch.begin && stretch.begin <= stretch.end);
        assert!(known.contains(&stretch.thread) && stretch.starter == here);
    }
    workers.record(false);
    workers.take_record();
    workers.for_each(20, |_| ());
    // A thread may still be recording the previous phase.
    assert!(workers.take_record().iter().all(|s| s.thread != here));
    let names: Vec<String> = workers.names().map(|(_, name)| name).collect();
    assert_eq!(names, ["zillion-worker-1", "zillion-worker-2"]);
}

#[test]
fn a_background_thread_runs_tasks_and_no_phase() {
    let workers = Workers::with_background(NonZeroUsize::MIN).unwrap();
    assert!(workers.runs_tasks() && workers.threads() == 1);
    let task = workers.spawn(|| std::thread::current().id());
    let began = Instant::now();
    while !task.is_done() {
        assert!(began.elapsed() < Duration::from_secs(20), "nobody ran the task");
        std::thread::yield_now();
    }
    let background = task.join();
    assert_eq!(workers.names().next().map(|(id, _)| id), Some(background));
    workers.for_each(100, |_| assert_ne!(std::thread::current().id(), background));
    let more = Workers::with_background(NonZeroUsize::new(3).unwrap()).unwrap();
    let threads = Mutex::new(BTreeSet::new());
    let tasks: Vec<_> = (0..50).map(|_| more.spawn(|| std::thread::current().id())).collect();
    more.for_each(100, |_| {
        threads.lock().unwrap().insert(format!("{:?}", std::thread::current().id()));
    });
    let of_tasks: BTreeSet<_> =
        tasks.into_iter().map(|task| format!("{:?}", task.join())).collect();
    let background = more.names().last().map(|(id, _)| format!("{id:?}")).unwrap();
    assert!(!threads.lock().unwrap().contains(&background));
    let here = format!("{:?}", std::thread::current().id());
    assert!(of_tasks.iter().all(|thread| *thread == background || *thread == here));
}

#[test]
fn pools_come_and_go() {
    for _ in 0..200 {
        let workers = pool(3);
        let threads = Mutex::new(BTreeSet::new());
        workers.for_each(20, |_| {
            threads.lock().unwrap().insert(format!("{:?}", std::thread::current().id()));
        });
        assert!(threads.lock().unwrap().len() <= 3);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_idle_pool_uses_no_processor_time() {
    let workers = pool(2);
    let worker = workers.spawn(|| {
        // SAFETY: the call only returns the number of this thread.
        unsafe { libc::gettid() }
    });
    let start = Instant::now();
    while !worker.is_done() {
        assert!(start.elapsed() < Duration::from_secs(20), "nobody ran the task");
        std::thread::sleep(Duration::from_millis(1));
    }
    let stat = format!("/proc/self/task/{}/schedstat", worker.join());
    let nanoseconds = || -> u64 {
        let text = std::fs::read_to_string(&stat).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    };
    workers.for_each(4, |_| ());
    std::thread::sleep(Duration::from_millis(20));
    let before = nanoseconds();
    std::thread::sleep(Duration::from_millis(200));
    assert!(nanoseconds() - before < 2_000_000, "an idle worker is busy");
}
