//! Tests that programs find the files of a kernel driver: `/sys/class/infiniband` and `/dev/infiniband`.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/programs.rs"]
mod programs;

const LOOKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files/looks.c");

#[test]
fn the_files_are_found_in_every_way() {
    let scratch = common::scratch("files");
    let program = scratch.join("looks");
    common::compile(&program, &[LOOKS, "-libverbs", "-lmlx5"]);
    let program = program.to_str().unwrap();
    let longest = "x".repeat(63);
    for name in ["ironwarp0", "mlx5_0", "device", &longest] {
        let ended = programs::run("files-looks", &["--name", name], &[program, name]);
        assert_eq!((ended.code, &*ended.output), (0, ""), "--name {name}");
    }
    std::fs::remove_dir_all(scratch).unwrap();
}

#[test]
fn counters_count_what_was_sent_and_received() {
    let scratch = common::scratch("counts");
    let program = scratch.join("counts");
    common::compile(&program, &[&LOOKS.replace("looks", "counts"), "-libverbs"]);
    let ended = programs::run("files-counts", &[], &[program.to_str().unwrap()]);
    assert!(ended.code == 0 && !ended.output.contains(".c:"), "{}", ended.output);
    std::fs::remove_dir_all(scratch).unwrap();
}

/// The commands of a shell are other processes, which inherit a virtual directory as their current one.
#[test]
fn shells_navigate_the_files() {
    let script = "cd /sys/class/infiniband/mlx5_0/ports/1 && pwd && /bin/pwd && cat link_layer && cd ../.. && /bin/pwd \
                  && cat hca_type && ls && find . -name state && echo *_guid && cat ports/1/gid_attrs/types/255";
    let ended = programs::run("files-shells", &["--name", "mlx5_0"], &["sh", "-c", script]);
    let port = "/sys/class/infiniband/mlx5_0/ports/1";
    let listed = "board_id\ndevice\nfw_ver\nhca_type\nhw_rev\nnode_desc\nnode_guid\nnode_type\nports\nsys_image_guid\nuevent\n";
    let refused = "cat: ports/1/gid_attrs/types/255: Invalid argument\n";
    let expected = format!(
        "{port}\n{port}\nEthernet\n/sys/class/infiniband/mlx5_0\nironwarp\n{listed}./ports/1/state\nnode_guid sys_image_guid\n{refused}"
    );
    assert_eq!((ended.code, ended.output), (1, expected));
}

/// These are programs of other packages.
#[test]
fn ibstat_ibstatus_and_hwloc_show_the_device() {
    let run = |words: &[&str]| {
        let ended = programs::run("files-shown", &["--name", "mlx5_0"], words);
        assert_eq!(ended.code, 0, "{words:?}: {}", ended.output);
        ended.output
    };
    let ibstat = run(&["ibstat"]);
    for line in
        ["CA 'mlx5_0'", "State: Active", "Physical state: LinkUp", "Rate: 100", "Link layer: Ethernet"]
    {
        assert!(ibstat.contains(line), "{line}: {ibstat}");
    }
    let ibstatus = run(&["ibstatus"]);
    assert!(ibstatus.starts_with("Infiniband device 'mlx5_0' port 1 status:\n"), "{ibstatus}");
    assert!(!ibstatus.contains("unknown") && ibstatus.contains("4: ACTIVE"), "{ibstatus}");
    let hwloc = run(&["lstopo-no-graphics", "--of", "console"]);
    assert!(hwloc.contains("OpenFabrics \"mlx5_0\""), "{hwloc}");
}

#[test]
fn missing_kernel_features_are_logged() {
    for (words, message) in [
        (&["rdma", "link"][..], "ironwarp: NETLINK_RDMA: the kernel does not know the device"),
        (
            &["perfquery"],
            "ironwarp: /sys/class/infiniband_mad/abi_version: the device has no management datagrams",
        ),
    ] {
        let ended = programs::run("files-refused", &[], words);
        assert!(ended.code != 0 && ended.output.contains(message), "{words:?}: {}", ended.output);
        assert_eq!(ended.output.matches("ironwarp: ").count(), 1, "{words:?}: {}", ended.output);
    }
}
