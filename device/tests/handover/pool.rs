//! Tests of the guarantees of the pool in many orders of events.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use shuttle::sync::{Arc, Barrier, Mutex};
use shuttle::thread;

use crate::explore;
use crate::workers::Workers;

fn pool(threads: usize) -> Workers {
    Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

#[test]
fn a_phase_has_ended_when_its_call_returns() {
    explore(|| {
        for threads in [2, 3] {
            let workers = pool(threads);
            for count in [2, 4] {
                let runs: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                // The counter outlives the phase. So if a body runs after the end of the phase, an
                // assertion fails, and no invalid memory is read.
                let (running, is_over) =
                    (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
                let (seen, over) = (running.clone(), is_over.clone());
                workers.for_each(count, |index| {
                    seen.fetch_add(1, SeqCst);
                    assert!(!over.load(SeqCst), "index {index} runs behind the end of its phase");
                    runs[index].fetch_add(1, SeqCst);
                    seen.fetch_sub(1, SeqCst);
                });
                assert_eq!(running.load(SeqCst), 0, "an index is still running");
                is_over.store(true, SeqCst);
                assert!(runs.iter().all(|runs| runs.load(SeqCst) == 1));
            }
        }
    });
}

#[test]
fn a_sleeping_thread_is_woken() {
    explore(|| {
        for threads in [2, 3] {
            let workers = pool(threads);
            for _ in 0..2 {
                // All threads must be in the phase at the same time, because each waits for the
                // others.
                let all = Barrier::new(threads);
                workers.for_each(threads, |_| {
                    all.wait();
                });
            }
            // A task also runs if no thread joins it.
            let ran = Arc::new((Mutex::new(false), shuttle::sync::Condvar::new()));
            let tell = ran.clone();
            let task = workers.spawn(move || {
                *tell.0.lock().unwrap() = true;
                tell.1.notify_all();
            });
            let mut done = ran.0.lock().unwrap();
            while !*done {
                done = ran.1.wait(done).unwrap();
            }
            drop(done);
            task.join();
        }
    });
}

#[test]
fn several_callers_and_phases_inside_of_phases_end() {
    explore(|| {
        let workers = Arc::new(pool(2));
        let leaves = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let (workers, leaves) = (workers.clone(), leaves.clone());
                thread::spawn(move || {
                    workers.for_each(2, |_| {
                        workers.for_each(2, |_| {
                            leaves.fetch_add(1, SeqCst);
                        });
                    });
                })
            })
            .collect();
        let mut items = [0; 3];
        workers.for_each_mut(&mut items, |index, item| *item = index + 1);
        assert_eq!(items, [1, 2, 3]);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(leaves.load(SeqCst), 8);
    });
}

#[test]
fn a_panic_reaches_the_caller_after_all_indices_ended() {
    explore(|| {
        let workers = pool(3);
        let running = AtomicUsize::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            workers.for_each(4, |index| {
                running.fetch_add(1, SeqCst);
                if index % 2 == 1 {
                    running.fetch_sub(1, SeqCst);
                    resume_unwind(Box::new(index));
                }
                running.fetch_sub(1, SeqCst);
            });
        }));
        assert_eq!(outcome.unwrap_err().downcast_ref::<usize>().map(|index| index % 2), Some(1));
        assert_eq!(running.load(SeqCst), 0);
        assert_eq!(workers.map(3, |index| index), [0, 1, 2], "the pool lives on");
    });
}

#[test]
fn joined_functions_end_with_the_phases_that_they_start() {
    for threads in [2, 3] {
        explore(move || {
            let workers = pool(threads);
            let (mut items, ran) = ([0; 3], AtomicUsize::new(0));
            let sides = workers.join(
                || workers.for_each_mut(&mut items, |index, item| *item = index + 1),
                || workers.map(2, |_| ran.fetch_add(1, SeqCst)).len(),
            );
            assert_eq!((sides, items, ran.load(SeqCst)), (((), 2), [1, 2, 3], 2));
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                workers.join(
                    || workers.for_each(2, |_| _ = ran.fetch_add(1, SeqCst)),
                    || resume_unwind(Box::new("one side")),
                )
            }));
            assert!(outcome.is_err());
            assert_eq!(workers.map(2, |index| index), [0, 1], "the pool lives on");
        });
    }
}

#[test]
fn tasks_end_once_on_any_thread() {
    explore(|| {
        let workers = pool(2);
        let runs: Arc<Vec<AtomicUsize>> = Arc::new((0..4).map(|_| AtomicUsize::new(0)).collect());
        let running = Arc::new(AtomicUsize::new(0));
        let spawn = |number: usize| {
            let (runs, running) = (runs.clone(), running.clone());
            workers.spawn(move || {
                running.fetch_add(1 << number, SeqCst);
                runs[number].fetch_add(1, SeqCst);
                running.fetch_sub(1 << number, SeqCst);
                number
            })
        };
        let (joined, cancelled, dropped, last) = (spawn(0), spawn(1), spawn(2), spawn(3));
        cancelled.cancel();
        let seen = runs[1].load(SeqCst);
        assert_eq!(running.load(SeqCst) & 2, 0, "a cancelled task still runs");
        drop(dropped);
        assert_eq!((last.join(), joined.join()), (3, 0));
        assert_eq!(runs[1].load(SeqCst), seen, "a cancelled task ran");
        drop(workers);
        let counts: Vec<usize> = runs.iter().map(|runs| runs.load(SeqCst)).collect();
        assert!(counts[0] == 1 && counts[3] == 1 && counts.iter().all(|&n| n <= 1), "{counts:?}");
    });
}

#[test]
fn tasks_and_pools_may_outlive_each_other() {
    explore(|| {
        let workers = pool(2);
        let tasks: Vec<_> = (0..3).map(|number| workers.spawn(move || number)).collect();
        drop(workers);
        let results: Vec<usize> = tasks.into_iter().map(|task| task.join()).collect();
        assert_eq!(results, [0, 1, 2]);

        // A task is the last owner of its pool, and starts a phase in this pool.
        let workers = Arc::new(pool(2));
        let inner = workers.clone();
        let task = workers.spawn(move || inner.map(3, |index| index).len());
        drop(workers);
        assert_eq!(task.join(), 3);
    });
}

#[test]
fn phases_may_join_tasks() {
    explore(|| {
        let workers = Arc::new(pool(2));
        let tasks: Vec<_> = (0..2)
            .map(|number| {
                let inner = workers.clone();
                workers.spawn(move || inner.map(2, |index| index + number).iter().sum::<usize>())
            })
            .collect();
        let tasks = Mutex::new(tasks);
        let sum = AtomicUsize::new(0);
        workers.for_each(2, |_| {
            let task = tasks.lock().unwrap().pop().unwrap();
            sum.fetch_add(task.join(), SeqCst);
        });
        assert_eq!(sum.load(SeqCst), 1 + 3);
    });
}
