#pragma once
int second();
