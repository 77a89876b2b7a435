package main

const waitContinued = 0x10 // WCONTINUED, which package unix lacks here
