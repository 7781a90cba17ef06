// On the CPU everything is in device.h, which is included before every kernel.
