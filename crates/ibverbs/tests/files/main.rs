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

/// Runs a shell script with these devices, and returns what it prints.
fn shell(devices: &str, script: &str) -> String {
    let setting = format!("IRONWARP_DEVICES={devices}");
    let ended = programs::run("files-devices", &[], &["env", &setting, "sh", "-ec", script]);
    assert_eq!(ended.code, 0, "{devices}: {script}: {}", ended.output);
    ended.output
}

#[test]
fn every_device_has_its_own_files() {
    let names: Vec<String> = (0..8).map(|index| format!("ironwarp{index}\n")).collect();
    assert_eq!(shell("8", "ls /sys/class/infiniband"), names.concat());
    assert_eq!(shell("8", "cat /sys/class/infiniband_verbs/uverbs?/ibdev"), names.concat());
    assert_eq!(shell("8", "ls /dev/infiniband | tail -n 1; test -c /dev/infiniband/uverbs7"), "uverbs7\n");
    assert_eq!(
        shell("8", "cat /sys/class/infiniband/ironwarp3/ports/1/gids/0"),
        "0000:0000:0000:0000:0000:ffff:7f00:0204\n"
    );
    let places: Vec<String> = (1..=8)
        .map(|slot| format!("/sys/devices/pci4957:00/4957:00:0{slot}.0/4957:0{slot}:00.0\n"))
        .collect();
    assert_eq!(shell("8", "readlink -f /sys/class/infiniband/*/device"), places.concat());
    assert_eq!(shell("8", "cat /sys/class/infiniband/*/device/numa_node"), "-1\n".repeat(8));
    assert_eq!(shell("4 numa=0,1", "cat /sys/class/infiniband/*/device/numa_node"), "0\n1\n0\n1\n");
    let beside = "cd /sys/class/infiniband/ironwarp3 && /bin/pwd && cat ../ironwarp4/node_guid && cd device \
                  && /bin/pwd && cat class ../class && ls net && readlink -f net/lo/mtu";
    let place = places[3].trim_end();
    let expected = format!(
        "/sys/class/infiniband/ironwarp3\n0249:57ff:fe00:0205\n{place}\n0x020000\n0x060400\nlo\n{}\n",
        std::fs::canonicalize("/sys/class/net/lo/mtu").unwrap().display()
    );
    assert_eq!(shell("8", beside), expected);
}

/// NCCL and programs for PCI find a device by its address on the bus. Real devices stay listed, and ours do not appear
/// between them.
#[test]
fn devices_are_found_by_their_pci_address() {
    assert_eq!(
        shell(
            "8",
            "realpath /sys/class/pci_bus/4957:03/../../4957:03:00.0 /sys/bus/pci/devices/4957:00:03.0"
        ),
        "/sys/devices/pci4957:00/4957:00:03.0/4957:03:00.0\n/sys/devices/pci4957:00/4957:00:03.0\n"
    );
    let link = "cat /sys/bus/pci/devices/4957:03:00.0/max_link_speed /sys/bus/pci/devices/4957:00:03.0/max_link_width";
    assert_eq!(shell("8", link), "16.0 GT/s PCIe\n16\n");
    let cat = "cd /sys/bus/pci/devices/4957:03:00.0 && ls infiniband && cat infiniband/ironwarp2/ports/1/lid \
               && readlink infiniband/ironwarp2 && cd infiniband/ironwarp2 && /bin/pwd";
    assert_eq!(
        shell("8", cat),
        "ironwarp2\n0x203\n../../../../../class/infiniband/ironwarp2\n/sys/class/infiniband/ironwarp2\n"
    );
    // UCX takes the address from the real path of the device.
    let ucx = shell("8", "UCX_LOG_LEVEL=debug ucx_info -d");
    assert!(ucx.contains("sysfs path is '/sys/devices/pci4957:00/4957:00:08.0/4957:08:00.0'"), "{ucx}");
    let list = "ls /sys/bus/pci/devices /sys/class/pci_bus /sys/devices 2>&1 || true";
    let real = std::process::Command::new("sh").args(["-c", list]).output().unwrap();
    assert_eq!(shell("8", list), String::from_utf8(real.stdout).unwrap());
    shell("all", "test ! -e /sys/bus/pci/devices/4957:01:00.0 && test ! -e /sys/devices/pci4957:00");
}

#[test]
fn every_port_has_its_own_files() {
    let ports =
        "cd /sys/class/infiniband/ironwarp0/ports && echo * && cat */gids/0 && cd 2 && cat ../1/lid lid";
    assert_eq!(
        shell("1 ports=2", ports),
        "1 2\n0000:0000:0000:0000:0000:ffff:7f00:0201\n0000:0000:0000:0000:0000:ffff:7f00:0202\n0x201\n0x202\n"
    );
    // As many as there can be: all directories exist beside the library.
    let most = "ls -R /sys/class/infiniband /sys/class/infiniband_verbs /sys/devices/pci4957:00/4957:00:10.0/pci_bus";
    let listed = shell("16 ports=4", most);
    assert_eq!(listed.matches("/gid_attrs/types:\n").count(), 64);
    assert!(listed.contains("\n/sys/class/infiniband/ironwarp15/ports/4/hw_counters:\n"), "{listed}");
    // find(1) opens directories relative to others.
    let numa = shell("16", "find /sys/devices/pci4957:00 -name numa_node");
    assert_eq!(numa.lines().count(), 32, "{numa}");
    let found = shell("16 ports=4", "find /sys/class/infiniband -name lid -exec cat {} +");
    let lids: std::collections::BTreeSet<&str> = found.lines().collect();
    assert_eq!(lids.len(), 64, "{found}");
}

#[test]
fn a_default_device_beside_others_is_in_its_usual_place() {
    let all = shell(
        "1; all; 1",
        "readlink -f /sys/class/infiniband/*/device && cat /sys/class/infiniband/*/device/net/lo/mtu",
    );
    let mut lines = all.lines();
    for place in
        ["pci4957:00/4957:00:01.0/4957:01:00.0", "platform/ironwarp", "pci4957:00/4957:00:03.0/4957:03:00.0"]
    {
        assert_eq!(lines.next().unwrap(), format!("/sys/devices/{place}"));
    }
    assert_eq!(lines.count(), 3);
    let link = "readlink /sys/class/infiniband/ironwarp1/device";
    assert_eq!(shell("1; all; 1", link), "../../../devices/platform/ironwarp\n");
}

/// These are programs of other packages.
#[test]
fn other_programs_show_every_device_and_port() {
    for (words, pattern) in [
        ("ibv_devices", "ironwarp"),
        ("ibv_devinfo", "hca_id:"),
        ("ibstat", "CA 'ironwarp"),
        ("ibstatus", "Infiniband device 'ironwarp"),
        ("lstopo-no-graphics --of console", "OpenFabrics \"ironwarp"),
        ("ucx_info -d | grep -A 2 'Transport: rc_verbs'", "Device: ironwarp"),
        ("fi_info -p verbs | grep domain: | sort -u", "ironwarp"),
        ("/usr/bin/python3 -c 'import pyverbs.device as d; print(*d.get_device_list())'", "ironwarp"),
    ] {
        let shown = shell("8", words);
        assert_eq!(shown.matches(pattern).count(), 8, "{words}: {shown}");
    }
    for (words, pattern) in [("ibv_devinfo", "port_lid:"), ("ibstat", "Port GUID: 0x0000ffff7f00020")] {
        let shown = shell("1 ports=2", words);
        assert_eq!(shown.matches(pattern).count(), 2, "{words}: {shown}");
    }
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
