//! A process forks while other threads use its devices.

use ironwarp_engine::config::Config;
use ironwarp_engine::{Engine, logical};
use ironwarp_testkit::fork::in_forked_child;
use std::sync::atomic::{AtomicBool, Ordering};

/// A child finds neither the list of devices nor their GID tables locked by a thread that it does not have.
#[test]
fn children_find_the_devices_whatever_threads_of_the_parent_do() {
    let stop = AtomicBool::new(false);
    let config = |name: &str| {
        Config::default().devices("2 rate=10g".parse().unwrap()).name(format!("{name}0").parse().unwrap())
    };
    let parents = logical::devices(&config("forked")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let devices = logical::devices(&config("forked")).unwrap();
                    devices.iter().for_each(|device| assert!(device.port(1).unwrap().is_active().unwrap()));
                }
            });
        }
        for _ in 0..200 {
            in_forked_child(|| {
                let engine = Engine::open(config("forked"), &parents[1]).unwrap();
                assert_eq!(engine.logical().name(), "forked1");
                assert_eq!(logical::devices(&config("child")).unwrap().len(), 2);
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A child records its own events, in a file of its own, and leaves that of its parent alone.
#[test]
fn a_child_records_events_of_its_own() {
    const QP: u32 = 0x77_0001;
    let _parents = Engine::new(Config::default().name("recorded0".parse().unwrap())).unwrap();
    let file = ironwarp_recorder::file().expect("the engine starts the recorder");
    ironwarp_recorder::record(1, QP, 1);
    in_forked_child(|| {
        assert_eq!(ironwarp_recorder::file(), None);
        ironwarp_recorder::record(1, QP, 2); // nowhere
        let _childs = Engine::new(Config::default().name("recorded0".parse().unwrap())).unwrap();
        let own = ironwarp_recorder::file().expect("the child records");
        assert!(own != file && own.exists() && file.exists());
        ironwarp_recorder::record(1, QP, 3);
        let events = ironwarp_recorder::last_events(QP, 8);
        assert_eq!(events.iter().map(|event| event.argument).collect::<Vec<_>>(), [3]);
        std::fs::remove_file(own).unwrap(); // the child ends without exit handlers
    });
    ironwarp_recorder::record(1, QP, 4);
    let ours: Vec<_> = ironwarp_recorder::of_process(std::process::id()).collect();
    let [ours] = &ours[..] else { panic!("one file") };
    let ours = ours.events.iter().filter(|event| event.qp == QP);
    assert_eq!(ours.map(|event| event.argument).collect::<Vec<_>>(), [1, 4]);
}
