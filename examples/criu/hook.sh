#!/bin/sh
# Action script for CRIU: lets a program under Ironwarp continue with its peers after a restore.
# docs/checkpoint.md has the whole procedure.
#
#     criu dump    --action-script ./hook.sh …
#     criu restore --action-script ./hook.sh …
#
# With these variables, an address moves with the program, into another network namespace or to another host:
#
#     IRONWARP_MOVE_ADDRESS   the address with its prefix, such as 192.0.2.2/24
#     IRONWARP_MOVE_DEVICE    its interface, at both ends
#
# The address is the fence. A host that has the address, but not the connections, would answer the peers with a reset. So
# the source gives the address up before its sockets are closed, and the target drops the packets of the peers
# until it has all sockets.
set -eu

prefixed=${IRONWARP_MOVE_ADDRESS:-}
device=${IRONWARP_MOVE_DEVICE:-}
address=${prefixed%/*}
fence=ironwarp-fence

add_address() {
    case $address in
    *:*) ip address replace "$prefixed" dev "$device" nodad ;;
    *) ip address replace "$prefixed" dev "$device" ;;
    esac
}

drop_arrivals() {
    case $address in
    *:*) family=ip6 ;;
    *) family=ip ;;
    esac
    # The first two lines remove what a failed restore has left.
    nft -f - <<END
add table inet $fence
delete table inet $fence
table inet $fence {
    chain arrivals {
        type filter hook prerouting priority raw; policy accept;
        $family daddr $address drop
    }
}
END
}

# CRIU's own rules keep packets away from the connections since it has frozen the program. They would stay, and
# block the connections if the program came back.
remove_rules_of_criu() {
    for table in $(nft list tables inet | sed -n 's/^table inet \(CRIU-.*\)$/\1/p'); do
        if nft list table inet "$table" | grep -qF " $address ."; then
            nft delete table inet "$table"
        fi
    done
}

case $CRTOOLS_SCRIPT_ACTION in
pre-dump)
    # The program still runs: $CRTOOLS_INIT_PID. This is the place for a command that moves its connections from shared
    # memory to TCP. There is none yet, so it must have been started with IRONWARP_SHM=off.
    ;;
post-dump)
    # The program is frozen, and CRIU has saved it. If this fails, CRIU lets it continue.
    if [ -n "$address" ]; then
        ip address del "$prefixed" dev "$device"
        remove_rules_of_criu
    fi
    ;;
pre-restore)
    # CRIU can restore a connection only where its address is.
    if [ -n "$address" ]; then
        drop_arrivals
        add_address
    fi
    ;;
post-restore)
    # All sockets are there, and the program does not run yet. With an empty neighbour table, this host asks for its
    # peers, and so tells them its link-layer address.
    if [ -n "$address" ]; then
        nft delete table inet "$fence"
        ip neighbour flush dev "$device"
    fi
    ;;
post-resume)
    # Notifies the program of its address, so that it reads the interfaces of this host.
    if [ -n "$address" ]; then
        add_address
    fi
    ;;
esac
