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
