//! Starts the recorder in several threads at once. The only test of its process, of which there is one recorder.

use ironwarp_recorder::{file, forget_in_child, of_process, record, start};
use std::fs;
use std::sync::Barrier;
use std::thread;

/// Number of threads. They outnumber the processors, so that some are interrupted.
const THREADS: u32 = 8;

#[test]
fn threads_that_start_the_recorder_at_once_share_it() {
    for round in 0..100 {
        let barrier = Barrier::new(THREADS as usize);
        thread::scope(|scope| {
            for number in 0..THREADS {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    start().unwrap();
                    record(1, round, number);
                });
            }
        });
        let recordings: Vec<_> = of_process(std::process::id()).collect();
        let [ours] = &recordings[..] else { panic!("round {round}: {} recordings", recordings.len()) };
        assert!(file().unwrap().exists());
        assert_eq!(ours.events.iter().filter(|event| event.qp == round).count(), THREADS as usize);
        // As in a forked child: no other thread runs.
        fs::remove_file(file().unwrap()).unwrap();
        forget_in_child();
    }
}
